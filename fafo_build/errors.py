"""Every error that fafo shows a person: what kind, where, what is wrong, and how to mend it.

An error's class says what kind it is, its problems say where and how to mend them. They are printed from
one place, `fafo_run.cli`, through `render`. Anything that is not a `FafoError` is a bug in fafo.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from enum import IntEnum

from attrs import frozen

from fafo_build.visible import visible

_WIDEST = 110
"""Characters of a source line that are shown; an inline template may be one line of thousands."""


class ExitCode(IntEnum):
    """What the process says to its caller (architecture.md section 9)."""

    DONE = 0
    USER_ERROR = 1
    USAGE = 2
    ITEMS_FAILED = 3
    VERIFY_BELOW = 4
    VERIFY_CANNOT_TELL = 5
    STORE_DAMAGED = 6
    BUG = 70
    INTERRUPTED = 130


@frozen
class Problem:
    """One thing that is wrong, at one place."""

    message: str
    """What is wrong, in one sentence without a full stop: `expected a whole number, got "many"`."""
    file: str | None = None
    """The file as the user would type it: relative to the project folder where that is possible."""
    line: int | None = None
    """1-based."""
    column: int | None = None
    """1-based, in characters."""
    field: str | None = None
    """The key's path as the user knows it: `class.judge.sampling.max_new_tokens`."""
    source_line: str | None = None
    """The text of that line, for the caret; None where there is no line to show."""
    cure: str | None = None
    """What to do about it, as an instruction."""

    @property
    def where(self) -> str:
        """`file:line:column`, as far as it is known; empty when nothing is."""
        parts = [self.file] if self.file else []
        if parts and self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)

    def render(self) -> str:
        """Return the problem as people read it: one line, then the source line, a caret and the cure."""
        head = ": ".join(part for part in (self.where, self.field, self.message) if part)
        lines = [visible(head)]
        if self.source_line is not None:
            shown, caret = _excerpt(self.source_line.rstrip("\r\n"), self.column)
            lines.append(f"    {shown}".rstrip())
            if caret is not None:
                lines.append("    " + " " * caret + "^")
        if self.cure:
            lines.append(f"  cure: {visible(self.cure)}")
        return "\n".join(lines)


def _excerpt(line: str, column: int | None) -> tuple[str, int | None]:
    """Return the part of a line that is worth showing, and how many cells before the caret.

    A character as wide as two letters counts as two.
    """
    line = line.replace("\t", " ")
    at = min(column - 1, len(line)) if column is not None else 0
    start = max(0, at - _WIDEST // 2) if len(line) > _WIDEST else 0
    end = start + _WIDEST
    before, after = ("…" if start else ""), ("…" if end < len(line) else "")
    caret = None if column is None else len(before) + sum(map(_cells, visible(line[start:at])))
    return before + visible(line[start:end]) + after, caret


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


class FafoError(Exception):
    """Something is wrong that a person can mend."""

    exit_code: ExitCode = ExitCode.USER_ERROR

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(problem.message for problem in self.problems))

    @classmethod
    def of(
        cls, message: str, *, cure: str | None = None, file: str | None = None, field: str | None = None
    ) -> FafoError:
        """Return the error of one problem that has no line in a file."""
        return cls(Problem(message, cure=cure, file=file, field=field))

    def render(self) -> str:
        """Return all problems as people read them, an empty line between two."""
        return "\n\n".join(problem.render() for problem in self.problems)


class DeclarationError(FafoError):
    """`fafo.toml` or a class file can't be read, or says something that can't be meant."""


class TemplateError(FafoError):
    """A prompt or a chat template has a mistake, or does what a baked prompt can't."""


class ModelError(FafoError):
    """The model, its tokenizer or its chat template can't be found, read or trusted."""


class BakeError(FafoError):
    """A class can't be baked so that the engine gets the model's own ids, or build/ isn't current."""


class SourceError(FafoError):
    """A source can't be read at all, or two of its rows contradict each other."""


class StoreError(FafoError):
    """A run's folder can't be used: it is in use, of another format, damaged, or the disk refused."""


class StoppedError(FafoError):
    """A run ended before it was done, since more of its outcomes failed than `run.stop_when` allows."""


class EngineError(FafoError):
    """The engine can't start or can't serve this project: a missing package, no server, a wrong model."""
