"""How one TOML value becomes one Python value, strictly: a string is no number, a bool no whole number.

Knows the kinds of values that fafo's files have, and nothing of the nouns that hold them.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

At = Literal["key", "value", "table"]
"""What the caret points at: the key, its value, or the head of the table that lacks something."""

Path = tuple[str | int, ...]
"""Keys and 0-based list indices from the top of a file down to a value."""

Noted = TypeVar("Noted", bound=Callable[..., Any])

_UNITS_OF_TIME = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_OF_SIZE = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_PART_OF_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(_UNITS_OF_TIME)})")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
_LONGEST_SHOWN = 40


class MistakeError(Exception):
    """A value that its key can't have, relative to the table or the value that is being read."""

    def __init__(
        self,
        message: str,
        *,
        cure: str | None = None,
        path: Path = (),
        at: At = "value",
        lacks: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.path = path
        self.at: At = at
        self.lacks = lacks
        """The keys of which one isn't there, where that is the mistake."""


def in_schema(**says: Any) -> Callable[[Noted], Noted]:
    """Note on a parser, a check or a rule what it means in JSON Schema, where `schema` finds it.

    It may say less than the function does, but never more: an editor mustn't refuse what fafo takes.
    """

    def note(function: Noted) -> Noted:
        vars(function)["schema"] = says
        return function

    return note


def _any_case(word: str) -> str:
    """Return a pattern for a word in any case: not every reader of JSON Schema has a flag for that."""
    return "".join(f"[{letter.upper()}{letter.lower()}]" for letter in word)


def bare(value: float) -> str:
    """Return a number as it was written: a whole one may have become a float on its way here."""
    return repr(value).removesuffix(".0")


def describe(value: Any) -> str:
    """Return a value as its author would recognise it: `"many"`, `true`, `a list`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = value if len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 1] + "…"
        return json.dumps(shown, ensure_ascii=False)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a time" if isinstance(value, datetime.time) else "a date"


def listed(names: Iterable[str]) -> str:
    """Return names in one phrase: `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that the writer of `word` probably meant, if there is one."""
    by_folded = {option.casefold(): option for option in options}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[near[0]] if near else None


def did_you_mean(word: str, options: Iterable[str], *, what: str) -> str:
    """Return the cure for a misspelt name: the nearest option, or all that exist (`what`: "keys here")."""
    known = list(options)
    near = nearest(word, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"{what}: {', '.join(known)}" if known else f"{what}: none"


def _expected(what: str, value: Any, cure: str | None = None) -> MistakeError:
    return MistakeError(f"expected {what}, got {describe(value)}", cure=cure)


def text(value: Any, _: object = str) -> str:
    """Return a string as it is."""
    if isinstance(value, str):
        return value
    plain = isinstance(value, int | float)
    raise _expected("a string", value, f'put it in quotes: "{describe(value)}"' if plain else None)


def flag(value: Any, _: object = bool) -> bool:
    """Return true or false as it is."""
    if isinstance(value, bool):
        return value
    quoted = isinstance(value, str) and value.lower() in ("true", "false")
    raise _expected("true or false", value, f"write {value.lower()} without quotes" if quoted else None)


def whole(value: Any, _: object = int) -> int:
    """Return a whole number as it is."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    cure = _without_quotes(value)
    if isinstance(value, float) and value.is_integer():
        cure = f"write {int(value)}"
    raise _expected("a whole number", value, cure)


def number(value: Any, _: object = float) -> float:
    """Return a finite number as a float."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise _expected("a number", value, _without_quotes(value))


def _without_quotes(value: Any) -> str | None:
    numeric = isinstance(value, str) and re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?", value.strip())
    return f"write it without quotes: {value.strip()}" if numeric else None


def date(value: Any, _: object = datetime.date) -> datetime.date:
    """Return a TOML date (without a time) as it is."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if isinstance(value, datetime.datetime):
        raise MistakeError(
            "expected a date, got a date with a time", cure=f"write {value.date().isoformat()}"
        )
    quoted = isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value)
    cure = (
        f"write it without quotes: {value}" if quoted else "write a date such as 2026-01-31, without quotes"
    )
    raise _expected("a date", value, cure)


def as_list(value: Any, kind: type) -> str:
    """Return the cure for a value that should be a list."""
    if kind is str:
        return (
            f'put it in quotes: "{describe(value)}"'
            if isinstance(value, int | float)
            else 'such as ["a", "b"]'
        )
    return f"put it in brackets: [{value}]" if isinstance(value, int | float) else "such as [1, 2]"


@in_schema(type=["number", "string"], exclusiveMinimum=0, pattern=rf"^({_PART_OF_DURATION.pattern})+$")
def duration(value: Any) -> float:
    """Return seconds, from a number of seconds or from text such as `15m`, `1h30m` or `500ms`."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        seconds = float(value)
    elif isinstance(value, str):
        parts = _PART_OF_DURATION.findall(value)
        if parts and "".join(amount + unit for amount, unit in parts) == value:
            seconds = sum(float(amount) * _UNITS_OF_TIME[unit] for amount, unit in parts)
    if seconds is None:
        raise _expected(
            "a duration", value, 'write seconds (90) or a text with units (ms, s, m, h, d): "15m"'
        )
    if seconds <= 0:
        raise MistakeError(f"expected a duration above 0, got {describe(value)}")
    return seconds


@in_schema(
    type=["integer", "string"],
    pattern=rf"^[0-9]+(?:\.[0-9]+)? ?(?:{'|'.join(map(_any_case, _UNITS_OF_SIZE))})$",
)
def size(value: Any) -> int:
    """Return bytes, from a number of bytes or from text such as `256MiB`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = {known.lower(): known for known in _UNITS_OF_SIZE}.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise _expected("a size", value, 'write bytes (1048576) or a text with a unit: "256MiB"')
    return int(float(match[1]) * _UNITS_OF_SIZE[unit])


def one_of(value: Any, allowed: tuple[str, ...]) -> str:
    """Return a string that is one of `allowed`."""
    if isinstance(value, str) and value in allowed:
        return value
    quoted = [json.dumps(option) for option in allowed]
    near = nearest(value, allowed) if isinstance(value, str) else None
    cure = f'did you mean "{near}"?' if near else "write one of these"
    raise _expected(f"one of {', '.join(quoted)}", value, cure)


def plain(value: Any) -> Any:
    """Return a TOML value in which dates and times have become ISO text, all the way down."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value
