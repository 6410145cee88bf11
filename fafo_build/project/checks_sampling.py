"""What a parameter of `[sampling]` must be: the ranges and the limits are SGLang's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence

from fafo_build.project.values import MistakeError, bare, describe, in_schema

_MOST_STOPS = 32

_DIALECT = re.compile(r"\\(?:([pPxu]\{[^{}]*\}|[pP][A-Z]|[hHKRXz])|.)|(\(\?<(?![=!]))", re.DOTALL)
"""In the first group the escapes that Python doesn't know, in the second how others begin a named group."""


def between(least: int, most: int) -> Callable[[float], None]:
    """Return the check of a number that has two bounds."""

    @in_schema(minimum=least, maximum=most)
    def check(value: float) -> None:
        if not least <= value <= most:
            raise MistakeError(f"expected {least} to {most}, got {bare(value)}")

    return check


@in_schema(exclusiveMinimum=0, maximum=2)
def repetition_penalty(value: float) -> None:
    """Check a factor: 1 is none."""
    if not 0 < value <= 2:
        cure = "write 1 for none" if value == 0 else None
        raise MistakeError(f"expected more than 0 and at most 2, got {bare(value)}", cure=cure)


@in_schema(maxItems=_MOST_STOPS, uniqueItems=True, items={"minLength": 1})
def stop(values: Sequence[str]) -> None:
    """Check the texts that end an output; white space is one."""
    if len(values) > _MOST_STOPS:
        raise MistakeError(f"expected at most {_MOST_STOPS} texts, got {len(values)}")
    for index, value in enumerate(values):
        path = (index,) if len(values) > 1 else ()
        if not value:
            raise MistakeError("expected a text that isn't empty", path=path)
        if value in values[:index]:
            raise MistakeError(f"{describe(value)} is listed twice", path=path)


@in_schema(uniqueItems=True, items={"minimum": 0})
def stop_token_ids(values: Sequence[int]) -> None:
    """Check ids, as far as no vocabulary is needed."""
    for index, value in enumerate(values):
        if value < 0:
            raise MistakeError(f"expected 0 or more, got {value}", path=(index,))
        if value in values[:index]:
            raise MistakeError(f"{value} is listed twice", path=(index,))


@in_schema(pattern=r"\S")
def regex(value: str) -> None:
    """Refuse what is broken in every dialect. Each engine has its own, and none of them is Python's."""
    _form(value)
    common = _DIALECT.sub(lambda found: "x" if found[1] else "(?P<" if found[2] else found[0], value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(common)
    except (re.error, OverflowError, RecursionError) as error:
        raise MistakeError(
            f"not a regular expression: {error}",
            cure="mend it; in single quotes TOML leaves a backslash as it is: '\\d+'",
        ) from error


@in_schema(pattern=":")
def ebnf(value: str) -> None:
    """Check that a grammar has a rule: each engine has its own way to write one."""
    _form(value)
    if ":" not in value:
        raise MistakeError(
            f"expected a grammar, and {describe(value)} has no rule",
            cure='write its text, not the name of a file: \'root ::= "yes" | "no"\'',
        )


def _form(value: str) -> None:
    if not value.strip():
        raise MistakeError("expected a text that isn't empty")
    if "\0" in value:
        raise MistakeError("a NUL character can't stand here: no engine takes it", cure="take it out")
