"""What a template sees of a row: its columns, and what stands for a field that is null or missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

from jinja2 import StrictUndefined, UndefinedError

from fafo_build.project.values import nearest

_MEMORY = re.compile(r" at 0x[0-9a-fA-F]+>")
"""How Python's text of what has no text of its own ends: with its place in this process's memory."""


class RowFields(Mapping[str, Any]):
    """`item`: the columns of one row, in the source's order."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return repr(dict(self._fields))


class FieldError(UndefinedError):
    """A field is used that is null or isn't there."""

    def __init__(self, message: str | None = None, *, container: Mapping[Any, Any], name: Any) -> None:
        super().__init__(message)
        self.container = container
        """What should have the field."""
        self.name = name
        """Of the field: it is in the container where it is null."""


class NullField(StrictUndefined):
    """A field that is there and null: it can't be printed or looped over, and counts as false in `if`."""

    def __bool__(self) -> bool:  # type: ignore[override]
        return False


def field_of(container: Mapping[Any, Any], name: Any) -> Any:
    """Return a field that `container` has; a null becomes a `NullField`, which says its name when used."""
    value = container[name]
    if value is not None:
        return value
    return NullField(f"field '{name}' is null", container, name, _error_of(container, name))


def missing_field(container: Mapping[Any, Any], name: Any) -> StrictUndefined:
    """Return what stands for a field that `container` lacks; using it raises, with the nearest name."""
    what = "the row" if isinstance(container, RowFields) else "the value"
    near = nearest(str(name), [key for key in container if isinstance(key, str)])
    hint = f"{what} has no field '{name}'" + (f"; did you mean '{near}'?" if near else "")
    return StrictUndefined(hint, container, str(name), _error_of(container, name))


def _error_of(container: Mapping[Any, Any], name: Any) -> type[FieldError]:
    # Jinja only calls it with a message, and so takes more than the class that it asks for.
    return cast("type[FieldError]", partial(FieldError, container=container, name=name))


def printable(value: Any) -> Any:
    """Return `value` if printing it gives the same text every time.

    Raises `UndefinedError` for a null, a missing field, and what has no text of its own (a function, a
    generator).
    """
    if isinstance(value, StrictUndefined):
        str(value)
    if value is None:
        raise UndefinedError("a null can't be printed")
    _check(value)
    return value


def _check(value: Any) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check(key)
            _check(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check(inner)
    elif value is not None and not isinstance(value, str | bool | int | float):
        kind = type(value).__name__
        cure = "; end it with a filter such as `| join` or `| list`" if kind == "generator" else ""
        raise UndefinedError(f"a {kind} can't be printed{cure}")


def texts(value: Any) -> Iterator[str]:
    """Yield every string in a value, keys of tables included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts(tuple(value.items()))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def holds(value: Any, sought: object) -> bool:
    """Tell whether `sought` is this very table, or one inside a value."""
    if sought is None:
        return False
    if isinstance(value, Mapping):
        return value is sought or any(holds(inner, sought) for inner in value.values())
    return isinstance(value, list | tuple) and any(holds(inner, sought) for inner in value)


def check_repeatable(rendered: str, *given: Any) -> None:
    """Raise `UndefinedError` for a text with a place in memory that stands in nothing that was `given`.

    `printable` doesn't see what a filter, `~` or `format` makes a text of.
    """
    if " at 0x" not in rendered:
        return
    for found in _MEMORY.findall(rendered):
        if not any(found in text for value in given for text in texts(value)):
            raise UndefinedError(
                f"a function, or another thing without a text, is put out as{found[:-1]}, which is another "
                "each time"
            )
