"""What a chat template's code is written with, word by word: names, strings, and what it does with them.

It is read, not run. Of a text that isn't Jinja nothing is found; rendering it says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from jinja2 import Environment, TemplateSyntaxError, meta

_SKIPPED = ("whitespace", "data", "comment", "comment_begin", "comment_end")

_ALWAYS_GIVEN = ("messages", "add_generation_prompt", "raise_exception", "strftime_now")

Token = tuple[str, str]
"""Jinja's kind of a token, and its text."""


@lru_cache(maxsize=64)
def tokens(chat_template: str) -> tuple[Token, ...]:
    """Return the tokens of the code, without the text that it only puts out."""
    try:
        return tuple(
            (kind, text) for _, kind, text in Environment().lex(chat_template) if kind not in _SKIPPED
        )
    except TemplateSyntaxError:
        return ()


def names(chat_template: str) -> frozenset[str]:
    """Return every name in the code."""
    return frozenset(text for kind, text in tokens(chat_template) if kind == "name")


def arguments_of(chat_template: str) -> frozenset[str]:
    """Return the names that a chat template takes from its caller, besides those that it always gets."""
    try:
        found = meta.find_undeclared_variables(Environment().parse(chat_template))
    except TemplateSyntaxError:  # it has tags of transformers' own
        found = set(names(chat_template))
    return frozenset(name for name in found if name not in _ALWAYS_GIVEN and not name.endswith("_token"))


def filters(chat_template: str) -> frozenset[str]:
    """Return the names that stand right after a `|`."""
    return frozenset(
        text
        for (_, before), (kind, text) in pairwise(tokens(chat_template))
        if before == "|" and kind == "name"
    )


def strings(chat_template: str) -> tuple[str, ...]:
    """Return the string constants, each once, in order."""
    return tuple(
        dict.fromkeys(_value(text) for kind, text in tokens(chat_template) if kind == "string" if text[1:-1])
    )


def integers(chat_template: str) -> tuple[int, ...]:
    """Return the whole numbers in the code, each once, in order."""
    # With base 0 as Jinja reads them: `1_000`, `0x10`.
    return tuple(dict.fromkeys(int(text, 0) for kind, text in tokens(chat_template) if kind == "integer"))


def arguments(chat_template: str, *functions: str) -> tuple[str, ...]:
    """Return the string constants within the brackets after one of these names, each once, in order."""
    return tuple(dict.fromkeys(_arguments(tokens(chat_template), functions)))


def operands(chat_template: str) -> tuple[str, ...]:
    """Return the string constants beside `in` and `==`, each once, in order."""
    code = tokens(chat_template)
    pairs = [*pairwise(code), *((second, first) for first, second in pairwise(code))]
    found = (_value(text) for (kind, text), (_, other) in pairs if kind == "string" and other in ("in", "=="))
    return tuple(dict.fromkeys(found))


def _arguments(code: tuple[Token, ...], functions: tuple[str, ...]) -> Iterator[str]:
    for at, (kind, name) in enumerate(code[:-1]):
        if kind != "name" or name not in functions or code[at + 1][1] != "(":
            continue
        depth = 0
        for inner, text in code[at + 1 :]:
            depth += (text == "(") - (text == ")")
            if depth == 0:
                break
            if inner == "string":
                yield _value(text)


def _value(literal: str) -> str:
    """Return what a string literal stands for, as Jinja reads it."""
    return literal[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")
