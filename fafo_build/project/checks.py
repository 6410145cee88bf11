"""What the value of one key must be, beyond its type. Of the keys of a table together, `rules` knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fafo_build.project import checks_launch as launch
from fafo_build.project import checks_sampling as sampling
from fafo_build.project.declaration import (
    Engine,
    Examples,
    Launch,
    Message,
    Model,
    ProjectTable,
    PromptClass,
    QueueDepth,
    Run,
    Sampling,
    SegmentPolicy,
    Source,
    StopWhen,
    Verify,
)
from fafo_build.project.values import MistakeError, bare, describe, duration, in_schema, listed, size

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_RULE = "letters, digits, `_`, `-` and `.`, beginning with a letter or a digit"

_NAME_SCHEMA = f"^{NAME.pattern}$"
_FILLED = r"\S"

Check = Callable[[Any], None]
"""Raises `MistakeError` for a value that its key can't have."""

# A segment's header alone takes 4 KiB.
_SMALLEST_SEGMENT = 8192

# No user and password: the URL goes into results and exports as the name of who answered.
_SERVER = r"^https?://[^/\s?#@]+(/[^\s?#@]*)?$"

_OUR_BUSINESS = "take it out: fafo renders and encodes the conversation by itself"

_TAKEN: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("self", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"),
            *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
        ),
        _OUR_BUSINESS,
    ),
    **dict.fromkeys(("messages", "conversation", "conversations"), "write each message as a [[message]]"),
    "chat_template": 'name the file in the project: model.chat_template = "prompts/chat.jinja"',
    "add_generation_prompt": "take it out: a conversation always ends where the answer begins",
    "continue_final_message": "write prefill = true in the last [[message]]",
    "strftime_now": "give the model a date: model.date = 2026-01-31",
    **dict.fromkeys(
        ("raise_exception", "namespace", "dict", "range", "lipsum", "cycler", "joiner"),
        "take it out: chat templates know a function of this name",
    ),
}
"""Names that a chat template's caller can't give it, or that mean something else: what to do instead."""

_SEEN_BY_PROMPTS = ("item", "item_source", "item_key", "vars", "examples")


def at_least(least: int) -> Check:
    """Return the check of a number that has a lower bound."""

    @in_schema(minimum=least)
    def check(value: Any) -> None:
        if value < least:
            raise MistakeError(f"expected {least} or more, got {bare(value)}")

    return check


@in_schema(minimum=0, maximum=1)
def _share(value: float) -> None:
    if not 0 <= value <= 1:
        raise MistakeError(f"expected 0 to 1, got {bare(value)}")


@in_schema(exclusiveMinimum=0, maximum=1)
def _top_p(value: float) -> None:
    if not 0 < value <= 1:
        cure = "write 1 for no limit, or temperature = 0 for greedy decoding" if value == 0 else None
        raise MistakeError(f"expected more than 0 and at most 1, got {bare(value)}", cure=cure)


@in_schema(pattern=_FILLED)
def _not_empty(value: str) -> None:
    if not value.strip():
        raise MistakeError("expected a text that isn't empty")


@in_schema(minItems=1, uniqueItems=True, items={"pattern": _FILLED})
def _some(values: Sequence[str]) -> None:
    if not values:
        raise MistakeError("expected at least one, got an empty list")
    for index, value in enumerate(values):
        if not value.strip():
            raise MistakeError("expected a text that isn't empty", path=(index,) if len(values) > 1 else ())
        if value in values[:index]:
            raise MistakeError(f"{describe(value)} is listed twice", path=(index,))


@in_schema(pattern=f"^{NAME.pattern}$")
def _name(value: str) -> None:
    if not NAME.fullmatch(value):
        raise MistakeError(f"expected a name, got {describe(value)}", cure=f"a name has {NAME_RULE}")


@in_schema(minItems=1, uniqueItems=True, items={"minimum": 1})
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


@in_schema(pattern="^sqlite:///.")
def _sqlite(value: str) -> None:
    # The value isn't shown: a URL may hold a password.
    if not value.startswith("sqlite:///") or value == "sqlite:///":
        raise MistakeError(
            "expected the URL of a SQLite file",
            cure='write "sqlite:///" and a path: "sqlite:///data/world.db"',
        )


@in_schema(uniqueItems=True, items={"pattern": _SERVER})
def _servers(values: Sequence[str]) -> None:
    for index, value in enumerate(values):
        if not re.fullmatch(_SERVER, value):
            raise MistakeError(
                "expected the URL of a server",
                cure='such as "http://127.0.0.1:30000"; a key belongs into api_key_env',
                path=(index,),
            )
        if value in values[:index]:
            raise MistakeError(f"{value} is listed twice", cure="name each server once", path=(index,))


@in_schema(pattern=f"^{launch.ENV_NAME}$")
def _env_name(value: str) -> None:
    if not re.fullmatch(launch.ENV_NAME, value):
        # The value isn't shown: it may be the key itself.
        raise MistakeError(
            "expected the name of an environment variable, not the key itself",
            cure='such as "SGLANG_API_KEY"',
        )


@in_schema(pattern=_FILLED, **{"not": {"pattern": r"^/|(^|/)\.\.(/|$)"}})
def _in_prompts(value: str) -> None:
    _not_empty(value)
    if value.startswith("/") or ".." in value.split("/"):
        raise MistakeError(
            "expected a file inside the prompts folder", cure="write its path within that folder"
        )


@in_schema(propertyNames={"not": {"enum": list(_SEEN_BY_PROMPTS)}})
def _vars(value: Mapping[str, Any]) -> None:
    for name in value:
        if name in _SEEN_BY_PROMPTS:
            raise MistakeError(
                f"a prompt sees something else as {name}",
                cure=f"call it something else than {listed(_SEEN_BY_PROMPTS)}",
                path=(name,),
                at="key",
            )


@in_schema(
    propertyNames={"not": {"enum": list(_TAKEN)}},
    properties={
        name: {"type": ["array", "string"], "items": {"type": "object", "additionalProperties": True}}
        for name in ("tools", "documents")
    },
)
def _chat_template_kwargs(value: Mapping[str, Any]) -> None:
    for name, given in value.items():
        reason = _TAKEN.get(name)
        if reason is not None:
            raise MistakeError(f"{name} isn't for a class to set", cure=reason, path=(name,), at="key")
        if not name.isidentifier():
            raise MistakeError(
                f"no chat template can read a name like {describe(name)}",
                cure="letters, digits and `_`, beginning with a letter",
                path=(name,),
                at="key",
            )
        if name in ("tools", "documents") and not isinstance(given, str):
            tables = given if isinstance(given, list) else [given]
            if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in tables):
                raise MistakeError(
                    f"expected a list of tables, or a JSON file with one, got {describe(given)}",
                    cure=f'write [[chat_template_kwargs.{name}]] for each, or {name} = "{name}.json"',
                    path=(name,),
                )


PARSERS: Mapping[type, Mapping[str, Callable[[Any], Any]]] = {
    Engine: {"timeout_silence": duration},
    Launch: {"start_within": duration},
    Run: dict.fromkeys(("lease", "poll", "stop_within"), duration),
    SegmentPolicy: {"size": size, "idle": duration},
}
"""Fields whose values are written in another form than they are kept in."""

CHECKS: Mapping[type, Mapping[str, Check]] = {
    ProjectTable: dict.fromkeys(("classes", "prompts", "build", "runs"), _not_empty) | {"name": _name},
    Model: dict.fromkeys(("path", "revision", "chat_template"), _not_empty),
    Engine: {"urls": _servers, "api_key_env": _env_name, "max_running": at_least(1)},
    Launch: {
        "replicas": at_least(1),
        "gpus": at_least(0),
        "args": launch.args,
        "port": launch.port,
        "python": _not_empty,
        "env": launch.env,
    },
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
    StopWhen: dict.fromkeys(("failed", "empty"), _share),
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
        "frequency_penalty": sampling.between(-2, 2),
        "presence_penalty": sampling.between(-2, 2),
        "repetition_penalty": sampling.repetition_penalty,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
        "json_schema": _not_empty,
        "regex": sampling.regex,
        "ebnf": sampling.ebnf,
        "samples": at_least(1),
    },
    PromptClass: {"sources": _some, "vars": _vars, "chat_template_kwargs": _chat_template_kwargs},
}
"""What a field's value must be, once it has the right type."""
