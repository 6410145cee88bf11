"""Templates without their comments: an edited comment changes nothing that a model gets to see."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, TemplateSyntaxError

_COMMENT = ("comment_begin", "comment", "comment_end")


def without_comments(source: str) -> str:
    """Return a template that renders the same and has no comment text."""
    environment = Environment(keep_trailing_newline=True)
    bare = "".join(text for _, text in _code(environment, source))
    if bare == source:
        return source
    try:
        same = _meaning(environment, bare) == _meaning(environment, source)
    except TemplateSyntaxError:
        same = False
    # A comment can keep `{` and `{` apart, which would read as a tag without it. Such a template stays as
    # it is.
    return bare if same else source


def _meaning(environment: Environment, source: str) -> list[tuple[str, str]]:
    """Return a template's tokens without comments, with neighbouring text joined."""
    joined: list[tuple[str, str]] = []
    for kind, text in _code(environment, source):
        if kind == "data" and joined and joined[-1][0] == "data":
            joined[-1] = ("data", joined[-1][1] + text)
        elif text or kind != "data":
            joined.append((kind, text))
    return joined


def _code(environment: Environment, source: str) -> Iterator[tuple[str, str]]:
    for _, kind, text in environment.lex(source):
        if kind not in _COMMENT:
            yield kind, text
