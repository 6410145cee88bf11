"""What the value of one key must be, beyond its type. Of the keys of a table together, `rules` knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fafo_build.project.declaration import (
    Engine,
    Examples,
    Message,
    Model,
    ProjectTable,
    PromptClass,
    QueueDepth,
    Run,
    Sampling,
    SegmentPolicy,
    Source,
    Verify,
)
from fafo_build.project.values import MistakeError, describe, duration, listed, size

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_RULE = "letters, digits, `_`, `-` and `.`, beginning with a letter or a digit"

Check = Callable[[Any], None]
"""Raises `MistakeError` for a value that its key can't have."""

# A segment's header alone takes 4 KiB.
_SMALLEST_SEGMENT = 8192

_SEEN_BY_PROMPTS = ("item", "item_source", "item_key", "vars", "examples")


def _bare(value: float) -> str:
    """Return a number as it was written: a whole one may have become a float on its way here."""
    return repr(value).removesuffix(".0")


def at_least(least: int) -> Check:
    """Return the check of a number that has a lower bound."""

    def check(value: Any) -> None:
        if value < least:
            raise MistakeError(f"expected {least} or more, got {_bare(value)}")

    return check


def _share(value: float) -> None:
    if not 0 <= value <= 1:
        raise MistakeError(f"expected 0 to 1, got {_bare(value)}")


def _top_p(value: float) -> None:
    if not 0 < value <= 1:
        cure = "write 1 for no limit, or temperature = 0 for greedy decoding" if value == 0 else None
        raise MistakeError(f"expected more than 0 and at most 1, got {_bare(value)}", cure=cure)


def _not_empty(value: str) -> None:
    if not value.strip():
        raise MistakeError("expected a text that isn't empty")


def _some(values: Sequence[str]) -> None:
    if not values:
        raise MistakeError("expected at least one, got an empty list")
    for index, value in enumerate(values):
        if not value.strip():
            raise MistakeError("expected a text that isn't empty", path=(index,) if len(values) > 1 else ())
        if value in values[:index]:
            raise MistakeError(f"{describe(value)} is listed twice", path=(index,))


def _name(value: str) -> None:
    if not NAME.fullmatch(value):
        raise MistakeError(f"expected a name, got {describe(value)}", cure=f"a name has {NAME_RULE}")


def _lanes(values: Sequence[int]) -> None:
    if not values:
        raise MistakeError("expected at least one lane, got an empty list")
    for index, value in enumerate(values):
        if value < 1:
            raise MistakeError(f"expected 1 or more, got {value}", path=(index,))
        if index and value <= values[index - 1]:
            raise MistakeError(
                f"lanes must rise, and {value} comes after {values[index - 1]}",
                cure="write the upper bounds from small to large, each once",
                path=(index,),
            )


def _sqlite(value: str) -> None:
    # The value isn't shown: a URL may hold a password.
    if not value.startswith("sqlite:///") or value == "sqlite:///":
        raise MistakeError(
            "expected the URL of a SQLite file",
            cure='write "sqlite:///" and a path: "sqlite:///data/world.db"',
        )


def _servers(values: Sequence[str]) -> None:
    for index, value in enumerate(values):
        if not re.match(r"https?://[^/\s]+", value):
            raise MistakeError(
                "expected the URL of a server", cure='such as "http://127.0.0.1:30000"', path=(index,)
            )
    if len(values) > 1:
        raise MistakeError(f"this version talks to one server, and {len(values)} are listed", path=(1,))


def _env_name(value: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        # The value isn't shown: it may be the key itself.
        raise MistakeError(
            "expected the name of an environment variable, not the key itself",
            cure='such as "SGLANG_API_KEY"',
        )


def _in_prompts(value: str) -> None:
    _not_empty(value)
    if value.startswith("/") or ".." in value.split("/"):
        raise MistakeError(
            "expected a file inside the prompts folder", cure="write its path within that folder"
        )


def _vars(value: Mapping[str, Any]) -> None:
    for name in value:
        if name in _SEEN_BY_PROMPTS:
            raise MistakeError(
                f"a prompt sees something else as {name}",
                cure=f"call it something else than {listed(_SEEN_BY_PROMPTS)}",
                path=(name,),
                at="key",
            )


PARSERS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    Engine: {"timeout_silence": duration},
    Run: {"lease": duration},
    SegmentPolicy: {"size": size, "idle": duration},
}
"""Fields whose values are written in another form than they are kept in."""

CHECKS: Mapping[type, Mapping[str, Check]] = {
    ProjectTable: dict.fromkeys(("classes", "prompts", "build", "runs"), _not_empty) | {"name": _name},
    Model: dict.fromkeys(("path", "revision", "chat_template"), _not_empty),
    Engine: {"urls": _servers, "api_key_env": _env_name, "max_running": at_least(1)},
    Source: {
        "name": _name,
        "key": _some,
        "path": _some,
        "url": _sqlite,
        "query": _not_empty,
        "limit": at_least(1),
    },
    QueueDepth: {"low": at_least(0), "high": at_least(1)},
    SegmentPolicy: {"size": at_least(_SMALLEST_SEGMENT)},
    Run: {"lanes": _lanes, "attempts": at_least(1)},
    Verify: {"min_hit_rate": _share},
    Message: {"prompt": _in_prompts},
    Examples: {"path": _not_empty},
    Sampling: {
        "max_new_tokens": at_least(1),
        "temperature": at_least(0),
        "top_p": _top_p,
        "top_k": at_least(1),
        "min_p": _share,
        "samples": at_least(1),
    },
    PromptClass: {"sources": _some, "vars": _vars},
}
"""What a field's value must be, once it has the right type."""
