"""What is wrong with a template that Jinja can't parse: where, in plain words, and what to do about it.

It looks at the tokens of Jinja's lexer and at where its parser stopped. It knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from attrs import frozen
from jinja2 import Environment, TemplateSyntaxError
from jinja2.parser import Parser

from fafo_build.project.values import nearest
from fafo_build.render.environment import CONSTANT_NAMES, ITEM_NAMES

_CLOSED = ("for", "if", "block", "macro", "call", "filter", "with", "autoescape", "set")
_FORMS = {
    "for": "{% for x in item.list %} … {% endfor %}",
    "if": "{% if item.x %} … {% elif item.y %} … {% else %} … {% endif %}",
    "elif": "{% elif item.y %}",
    "set": "{% set x = item.y %}",
    "include": "{% include 'other.md' %}",
    "import": "{% import 'other.md' as other %}",
    "from": "{% from 'other.md' import name %}",
    "extends": "{% extends 'other.md' %}",
    "block": "{% block name %} … {% endblock %}",
    "macro": "{% macro name(x) %} … {% endmacro %}",
    "with": "{% with x = item.y %} … {% endwith %}",
}
_TAGS = (*_CLOSED, *_FORMS, "else", "raw", "print", *(f"end{tag}" for tag in (*_CLOSED, "raw")))
_BRACES = "write {{ … }} around an expression, {% … %} around a statement"
_END_OF = {
    "variable_begin": ("{{", "}}"),
    "block_begin": ("{%", "%}"),
    "comment_begin": ("{#", "#}"),
    "raw_begin": ("{% raw %}", "{% endraw %}"),
}
_UNSEEN = ("whitespace", "comment_begin", "comment", "comment_end", "raw_begin", "raw_end")
"""What the lexer finds and the parser never gets."""


@frozen
class Mistake:
    """What is wrong with a template."""

    message: str
    line: int
    """1-based, in the template."""
    column: int | None
    """1-based, in characters; None where it isn't known."""
    cure: str | None


@frozen
class _Token:
    kind: str
    text: str
    line: int
    column: int
    end: int
    """The offset behind it."""


@frozen
class _Tag:
    """`{% name … %}`."""

    name: str
    begin: _Token
    at: _Token
    opens: bool


def explain(source: str, error: TemplateSyntaxError, environment: Environment) -> Mistake:
    """Return what is wrong with a normalised template for which `environment` raised `error`."""
    tokens, is_whole = _lexed(source, environment)
    fallback = Mistake(f"Jinja: {error.message}", error.lineno, None, _BRACES)
    open_now = _open_delimiter(tokens)
    if not is_whole:
        return _not_lexed(source, tokens, open_now, fallback)
    where = _stopped_at(source, tokens, environment)
    if where is None:
        # Parsed, and refused only afterwards: a block that is defined twice.
        return Mistake(fallback.message, error.lineno, None, "give each block a name of its own")
    if open_now is not None and where == len(tokens):
        return _never_closed(open_now)
    tags = list(_tags(tokens))
    here = next((tag for tag in tags if where < len(tokens) and tag.at == tokens[where]), None)
    stack, wrong = _followed(tags, here)
    if wrong is not None:
        return wrong
    if where == len(tokens) and stack:
        last = stack[-1]
        return Mistake(
            f"the {{% {last.name} %}} of line {last.begin.line} is never closed",
            last.begin.line,
            last.begin.column,
            f"add {{% end{last.name} %}}",
        )
    return _not_parsed(tokens, tags, where, fallback)


def _lexed(source: str, environment: Environment) -> tuple[list[_Token], bool]:
    """Return the tokens up to the first that there can't be, and whether these are all."""
    starts = list(accumulate((len(line) + 1 for line in source.split("\n")), initial=0))
    tokens: list[_Token] = []
    end = 0
    try:
        for line, kind, text in environment.lex(source):
            # `{%-` swallows white space before it, which is in no token.
            begin = source.index(text, end)
            end = begin + len(text)
            line += source.count("\n", starts[line - 1], begin)
            tokens.append(_Token(kind, text, line, begin - starts[line - 1] + 1, end))
    except TemplateSyntaxError:
        return tokens, False
    return tokens, True


def _open_delimiter(tokens: list[_Token]) -> _Token | None:
    """Return the `{{`, `{%`, `{#` or `{% raw %}` that nothing closes, if there is one."""
    opened = None
    for token in tokens:
        if token.kind in _END_OF:
            opened = token
        elif token.kind.endswith("_end"):
            opened = None
    return opened


def _never_closed(opened: _Token) -> Mistake:
    begin, end = _END_OF[opened.kind]
    return Mistake(
        f"the {begin} of line {opened.line} is never closed", opened.line, opened.column, f"add {end}"
    )


def _not_lexed(source: str, tokens: list[_Token], opened: _Token | None, fallback: Mistake) -> Mistake:
    if opened is not None and opened.kind in ("comment_begin", "raw_begin"):
        return _never_closed(opened)
    at = tokens[-1].end if tokens else 0
    line = source.count("\n", 0, at) + 1
    column = at - (source.rfind("\n", 0, at) + 1) + 1
    if opened is None or at >= len(source):
        return Mistake(fallback.message, line, column, fallback.cure)
    begin, end = _END_OF[opened.kind]
    return Mistake(
        f"unexpected {source[at]!r} between the {begin} of line {opened.line} and its {end}",
        line,
        column,
        _BRACES,
    )


def _stopped_at(source: str, tokens: list[_Token], environment: Environment) -> int | None:
    """Return the index of the token at which the parser stops, their number at the end; None if it doesn't
    stop.
    """
    parser = Parser(environment, source)
    try:
        parser.parse()
    except TemplateSyntaxError:
        left = sum(1 for _ in parser.stream)
    else:
        return None
    seen = [index for index, token in enumerate(tokens) if token.kind not in _UNSEEN]
    return seen[-left] if 0 < left <= len(seen) else len(tokens)


def _tags(tokens: list[_Token]) -> Iterator[_Tag]:
    begin = at = None
    assigns = False
    for token in tokens:
        if token.kind == "block_begin":
            begin, at, assigns = token, None, False
        elif token.kind == "block_end" and begin is not None and at is not None:
            opens = at.text in _CLOSED and not (at.text == "set" and assigns)
            yield _Tag(at.text, begin, at, opens)
            begin = None
        elif begin is not None and at is None and token.kind == "name":
            at = token
        assigns = assigns or (token.kind == "operator" and token.text == "=")


def _followed(tags: list[_Tag], last: _Tag | None) -> tuple[list[_Tag], Mistake | None]:
    """Follow the tags up to `last`, at which the parser stopped: what is open there, and what is wrong."""
    stack: list[_Tag] = []
    for tag in tags:
        if tag is last:
            return stack, _misplaced(tag, stack)
        if tag.opens:
            stack.append(tag)
        elif tag.name.startswith("end") and stack:
            stack.pop()
    return stack, None


def _misplaced(tag: _Tag, stack: list[_Tag]) -> Mistake | None:
    """Return what is wrong with a tag that can't stand here, None if it could."""
    shown = f"{{% {tag.name} %}}"
    inner = stack[-1] if stack else None
    if tag.name not in _TAGS:
        near = None if tag.name in (*ITEM_NAMES, *CONSTANT_NAMES) else nearest(tag.name, _TAGS)
        cure = f"did you mean {{% {near} %}}?" if near else "write {{ … }} around an expression"
        message = f"there is no tag {shown}"
    elif tag.name.startswith("end") and inner is not None:
        message = f"{shown} stands where the {{% {inner.name} %}} of line {inner.begin.line} isn't closed yet"
        cure = f"write {{% end{inner.name} %}} first"
    elif tag.name.startswith("end"):
        message, cure = f"{shown} closes nothing", f"take it out, or write {{% {tag.name[3:]} … %}} before"
    elif tag.name in ("else", "elif"):
        message = f"{shown} stands in no {{% if %}}" + (" or {% for %}" if tag.name == "else" else "")
        cure = f"close what is open first: {{% end{inner.name} %}}" if inner else "write {% if … %} before"
    else:
        return None
    return Mistake(message, tag.begin.line, tag.begin.column, cure)


def _not_parsed(tokens: list[_Token], tags: list[_Tag], where: int, fallback: Mistake) -> Mistake:
    """Return Jinja's own words, with the place and the form of the statement in which it stopped."""
    # A token that the parser has taken already may be the one that it complains of.
    at = next(
        (
            tokens[index]
            for index in (where, where - 1)
            if index < len(tokens) and tokens[index].kind != "data"
        ),
        None,
    )
    if at is None:
        return fallback
    around = next((tag for tag in reversed(tags) if tag.begin.end <= at.end), None)
    inside = around is not None and not any(
        around.at.end <= token.end <= at.end - len(at.text) and token.kind == "block_end" for token in tokens
    )
    form = _FORMS.get(around.name) if around is not None and inside else None
    cure = f"write it like this: {form}" if form else _BRACES
    return Mistake(fallback.message, at.line, at.column, cure)
