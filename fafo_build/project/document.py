"""One TOML file: read it, and say of any key where it stands. Knows nothing of what the keys mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from fafo_build.errors import DeclarationError, Problem
from fafo_build.project.values import At, Path

if TYPE_CHECKING:
    from fafo_build.project.positions import Place

_BOM = b"\xef\xbb\xbf"
_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")

_HEAD = re.compile(r"\s*\[\[?\s*(?P<name>[^\[\]#]+?)\s*\]")
_SEVERAL = ("source", "message")
"""Tables of which a file may have many."""


class Document:
    """A TOML file that could be read. Positions are looked up when they are first asked for."""

    def __init__(self, file: str, text: str, data: dict[str, Any]) -> None:
        self.file = file
        """As the user would type it, relative to the project."""
        self.data = data
        self._text = text

    @cached_property
    def _places(self) -> dict[Path, Place]:
        # tree-sitter takes 20 ms to import, and a project without mistakes doesn't need it.
        from fafo_build.project.positions import places

        return places(self._text)

    @property
    def paths(self) -> Iterable[Path]:
        """The path of every key and every value that the file has."""
        return self._places.keys()

    def line_of_text(self, path: Path) -> int:
        """Return the 1-based line on which the text of the string at `path` begins."""
        place = self._places.get(path)
        return place.text.line if place else 1

    def problem(self, path: Path, message: str, *, at: At, field: str, cure: str | None) -> Problem:
        """Return a problem with the place of `path`, or of the nearest table around it that the file has."""
        while path and path not in self._places:
            path, at = path[:-1], "table"
        if not path:
            return Problem(message, file=self.file, field=field or None, cure=cure)
        place = self._places[path]
        position = place.value if at == "value" else place.key
        return Problem(
            message,
            file=self.file,
            line=position.line,
            column=position.column,
            field=field or None,
            source_line=self._text.split("\n")[position.line - 1],
            cure=cure,
        )


def read_document(path: FilePath, file: str) -> Document:
    """Read a TOML file; `file` is its name in messages.

    Raises `DeclarationError` when it is absent, not a file, unreadable, not UTF-8 or not TOML.
    """
    raw = _bytes(path, file)
    if raw.startswith(_BOM):
        raise DeclarationError(
            Problem(
                "the file begins with a byte order mark, which TOML doesn't allow",
                file=file,
                line=1,
                column=1,
                cure='save it as "UTF-8", not as "UTF-8 with BOM"',
            )
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise DeclarationError(_not_utf8(raw, error.start, file)) from error
    # tomllib counts lines and columns after the same replacement.
    text = text.replace("\r\n", "\n")
    try:
        return Document(file, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(_syntax(error, text, file)) from error
    except (RecursionError, ValueError) as error:
        # Lists in lists by the hundred, or a number of thousands of digits: TOML, but not for this reader.
        raise DeclarationError(Problem(f"the file can't be read as TOML: {error}", file=file)) from error


def _bytes(path: FilePath, file: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DeclarationError(
            Problem("the file isn't there", file=file, cure="`fafo init` writes a small project that runs")
        ) from error
    except IsADirectoryError as error:
        raise DeclarationError(
            Problem("expected a file, found a folder", file=file, cure="move the folder away or rename it")
        ) from error
    except OSError as error:
        raise DeclarationError(
            Problem(f"the file can't be read: {error.strerror}", file=file, cure="check its permissions")
        ) from error


def _not_utf8(raw: bytes, offset: int, file: str) -> Problem:
    before = raw[:offset].decode()
    return Problem(
        f"the file isn't UTF-8: byte 0x{raw[offset]:02x} can't stand here",
        file=file,
        line=before.count("\n") + 1,
        column=len(before) - (before.rfind("\n") + 1) + 1,
        cure="save it as UTF-8",
    )


def _syntax(error: tomllib.TOMLDecodeError, text: str, file: str) -> Problem:
    """Return what tomllib says, at the place it says.

    Before Python 3.14 the place is in the error's text and nowhere else.
    """
    said = str(error)
    found = _WHERE.search(said)
    lines = text.split("\n")
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    else:
        line = len(text.rstrip("\n").split("\n"))
        column = len(lines[line - 1]) + 1
    message = said[: found.start()] if found else said
    shown = f"not TOML: {message[:1].lower()}{message[1:]}", _syntax_cure(lines[line - 1])
    twice = _head_twice(lines, line)
    if twice is not None:
        shown, column = twice, 1
    return Problem(shown[0], file=file, line=line, column=column, source_line=lines[line - 1], cure=shown[1])


def _head_twice(lines: Sequence[str], line: int) -> tuple[str, str] | None:
    """Return message and cure where the head of a table on a 1-based line stands further up too."""
    head = _HEAD.match(lines[line - 1])
    above = [_HEAD.match(other) for other in lines[: line - 1]] if head else []
    first = next(
        (number for number, other in enumerate(above, 1) if head and other and other["name"] == head["name"]),
        None,
    )
    if head is None or first is None:
        return None
    name = head["name"]
    cure = f"put all keys of [{name}] under one head"
    if name in _SEVERAL:
        cure = f"write double brackets, each time: [[{name}]]"
    return f"[{name}] stands on line {first} already, and a table has one head", cure


def _syntax_cure(line: str) -> str:
    """Return what is most often meant where a line `key = word` isn't TOML."""
    bare = re.fullmatch(r"\s*[\w.-]+\s*=\s*([A-Za-z_][\w ./:-]*)", line)
    if bare is None:
        return "look at this line and the one above for quotes, brackets, commas and keys written twice"
    if bare[1].strip() in ("True", "False"):
        return f"write {bare[1].strip().lower()}, in small letters"
    return f'put text in quotes: "{bare[1].strip()}"'
