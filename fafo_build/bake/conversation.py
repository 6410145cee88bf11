"""The messages of a class, as far as they are known without an item."""

from __future__ import annotations

from attrs import frozen

from fafo_build.bake.form import Turn
from fafo_build.errors import BakeError, Problem
from fafo_build.render.trace import Trace


@frozen
class Conversation:
    """The messages of a class, as far as they are known without an item."""

    name: str
    """Of the class."""
    file: str
    """Of the class, relative to the project."""
    roles: tuple[str | None, ...]
    """Per message; None where messages have no roles."""
    traces: tuple[Trace, ...]
    """Per message."""
    templates: tuple[str, ...]
    """Per message, the name of its template."""
    opts_in: bool
    """Whether some hole lets special tokens of an item through."""

    def turns(self, fillings: dict[int, str]) -> list[Turn]:
        """Return the conversation with `fillings[message]` in place of the holes; every hole needs one."""
        return [
            Turn(role, trace.head + fillings[number] if trace.has_hole else trace.head)
            for number, (role, trace) in enumerate(zip(self.roles, self.traces, strict=True))
        ]

    @property
    def open(self) -> tuple[int, ...]:
        """The numbers of the messages with a hole."""
        return tuple(number for number, trace in enumerate(self.traces) if trace.has_hole)

    def error(self, message: str, number: int | None = None, cure: str | None = None) -> BakeError:
        """Return the error of this class, or of one of its messages."""
        field = f"class.{self.name}" + ("" if number is None else f".message[{number + 1}]")
        return BakeError(Problem(message, file=self.file, field=field, cure=cure))
