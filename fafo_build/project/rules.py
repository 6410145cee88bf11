"""What the keys of one table must be together, and what to do about keys that are missing or strange.

Rules look at a table as it was written, so that they speak even where another key of it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fafo_build.project.declaration import (
    FORMS,
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
from fafo_build.project.turns import CONVERSATION_IN_SCHEMA, ROLE_IS_MISSING, conversation
from fafo_build.project.values import MistakeError, describe, in_schema

Rule = Callable[[Mapping[str, Any]], Iterator[MistakeError]]
"""Yields what is wrong with a table's keys together."""

_SOURCE_KEYS: Mapping[str, frozenset[str]] = {
    "files": frozenset({"path", "format"}),
    "sql": frozenset({"url", "query"}),
    "dataset": frozenset({"path"}),
}
_SOURCE_NEEDS: Mapping[str, Sequence[str]] = {
    "files": ("path",),
    "sql": ("url", "query"),
    "dataset": ("path",),
}
_OF_SOME_SOURCES = ("path", "format", "url", "query")
_WITHOUT_SERVER = ("transformers", "fake")
_SERVER_KEYS = ("urls", "launch", "api_key_env", "timeout_silence")


@in_schema()
def _project(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    folders = {key: table.get(key, key) for key in ("classes", "prompts", "build", "runs")}
    seen: dict[str, str] = {}
    for key, folder in folders.items():
        if not isinstance(folder, str):
            continue
        normal = folder.strip("/").removeprefix("./")
        if normal in seen:
            message = f"the folders {seen[normal]} and {key} are the same one"
            yield MistakeError(message, cure="give each a folder of its own", path=(key,))
        seen[normal] = key


@in_schema(
    allOf=[
        {
            "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
            "then": {
                "properties": {key: False for key in _OF_SOME_SOURCES if key not in keys}
                | ({"path": {"maxItems": 1}} if kind == "dataset" else {}),
                # The URL may come from the environment.
                "required": [key for key in _SOURCE_NEEDS[kind] if key != "url"],
            },
        }
        for kind, keys in _SOURCE_KEYS.items()
    ]
)
def _source(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in _SOURCE_KEYS:
        return
    for key in _OF_SOME_SOURCES:
        if key in table and key not in _SOURCE_KEYS[kind]:
            owners = [other for other, keys in _SOURCE_KEYS.items() if key in keys]
            yield MistakeError(
                f'a source of type "{kind}" has no {key}',
                cure=f"take it out, or write type = {' or '.join(describe(owner) for owner in owners)}",
                path=(key,),
                at="key",
            )
    for key in _SOURCE_NEEDS[kind]:
        if key not in table:
            yield MistakeError(
                f'a source of type "{kind}" needs {key}',
                cure=_EXAMPLES[kind, key],
                at="table",
                lacks=(key,),
            )
    paths = table.get("path")
    if kind == "dataset" and isinstance(paths, list) and len(paths) > 1:
        yield MistakeError(
            f"a dataset is one folder, and {len(paths)} are listed",
            cure="declare a [[source]] for each",
            path=("path", 1),
        )


_EXAMPLES = {
    ("files", "path"): 'add a line such as: path = "data/rows.jsonl"',
    ("dataset", "path"): 'add a line such as: path = "data/my_dataset"',
    ("sql", "url"): 'add a line such as: url = "sqlite:///data/world.db"',
    ("sql", "query"): 'add a line such as: query = "select code, name from country"',
}


# That `sglang` needs urls can't be said: they may come from the environment, in place of `launch`, too.
@in_schema(
    **{
        "if": {"properties": {"kind": {"enum": list(_WITHOUT_SERVER)}}},
        "then": {"properties": dict.fromkeys(_SERVER_KEYS, False)},
        "else": {"if": {"required": ["urls"]}, "then": {"properties": {"launch": False}}},
    }
)
def _engine(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    kind = table.get("kind", "transformers")
    if kind == "sglang":
        if "launch" in table:
            if "urls" in table:
                yield MistakeError(
                    "an engine has servers that run already (urls) or starts its own (launch), not both",
                    cure="keep the one that is meant; for both together declare two engines",
                    path=("launch",),
                    at="key",
                )
        elif not table.get("urls", ()):
            yield MistakeError(
                'an engine of kind "sglang" needs the URL of its server',
                cure='add a line such as: urls = ["http://127.0.0.1:30000"], or launch = { replicas = 1 } to '
                "start one, or set FAFO_ENGINE_URLS",
                at="table",
                lacks=("urls", "launch"),
            )
        return
    if kind not in _WITHOUT_SERVER:
        return
    for key in _SERVER_KEYS:
        if key in table:
            yield MistakeError(
                f'an engine of kind "{kind}" has no server, so it has no {key}',
                cure='take it out, or write kind = "sglang"',
                path=(key,),
                at="key",
            )


@in_schema(**{"not": {"required": ["python", "command"]}})
def _launch(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    if "python" in table and "command" in table:
        yield MistakeError(
            "a command stands in for `python -m sglang.launch_server`, so python has no meaning beside it",
            cure="write the Python as the command's first word, or take command out",
            path=("python",),
            at="key",
        )


@in_schema()
def _queue(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    defaults = QueueDepth()
    low, high = table.get("low", defaults.low), table.get("high", defaults.high)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        key = "low" if "low" in table else "high"
        shown = [
            f"{name} {value}" + ("" if name in table else " (the default)")
            for name, value in (("low", low), ("high", high))
        ]
        yield MistakeError(
            f"low must not be above high: {', '.join(shown)}", cure="lower low, or raise high", path=(key,)
        )


@in_schema(
    **{
        "if": {"required": ["prompt"]},
        "then": {"properties": {"content": False}},
        "else": {"required": ["content"]},
    }
)
def _message(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    if "prompt" in table and "content" in table:
        yield MistakeError(
            "a message has prompt or content, not both",
            cure='keep the one that is meant; a prompt can be included in content: {% include "NAME.md" %}',
            path=("content",),
            at="key",
        )
    if "prompt" not in table and "content" not in table:
        yield MistakeError(
            "a message needs prompt or content",
            cure='add prompt = "NAME.md", a file in the prompts folder, or content = "text"',
            at="table",
            lacks=("prompt", "content"),
        )


@in_schema(properties={"message": {"minItems": 1}}, **CONVERSATION_IN_SCHEMA)
def _class(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    if table.get("message") == []:
        yield MistakeError("a class needs at least one message", cure="add a [[message]]", path=("message",))
    yield from conversation(table)


@in_schema(
    allOf=[
        {"if": {"required": ["json_schema"]}, "then": {"properties": {"regex": False, "ebnf": False}}},
        {"if": {"required": ["regex"]}, "then": {"properties": {"ebnf": False}}},
        {
            "if": {"properties": {"temperature": {"const": 0}}, "required": ["temperature"]},
            "then": {"properties": {"samples": {"maximum": 1}}},
        },
    ]
)
def _sampling(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    first, *others = [key for key in table if key in FORMS] or [""]
    for key in others:
        yield MistakeError(
            f"an output has one form, and both {first} and {key} give it one",
            cure="keep the one that is meant",
            path=(key,),
            at="key",
        )
    samples, temperature = table.get("samples"), table.get("temperature")
    greedy = temperature == 0 and not isinstance(temperature, bool)
    if greedy and isinstance(samples, int) and samples > 1:
        yield MistakeError(
            f"with temperature 0 all {samples} samples of a row are the same output",
            cure="raise temperature, or take samples out",
            path=("samples",),
        )


RULES: Mapping[type, Rule] = {
    ProjectTable: _project,
    Source: _source,
    Engine: _engine,
    Launch: _launch,
    QueueDepth: _queue,
    Message: _message,
    Sampling: _sampling,
    PromptClass: _class,
}
"""What the keys of one table must be together."""

_LATER: Mapping[tuple[type, str], str] = {
    (Source, "where"): "filter in the query of an sql source",
    (Source, "select"): "shape the text in the prompt, or in the query of an sql source",
}
"""Keys that are planned, and what to do without them."""

HINTS: Mapping[tuple[type, str], str] = {
    **{place: f"{place[1]} is not in this version; {instead}" for place, instead in _LATER.items()},
    (Sampling, "n"): "write samples, for several outputs per row",
    (Sampling, "seed"): "take it out: every item has a seed of its own, made from what it is",
    (Model, "name"): "the name stands in the head of the table: [models.NAME]",
    (Engine, "name"): "the name stands in the head of the table: [engines.NAME]",
    (PromptClass, "name"): "a class has the name of its file",
    **dict.fromkeys(
        ((PromptClass, key) for key in ("tools", "documents", "enable_thinking")),
        "write it below [chat_template_kwargs]",
    ),
    (Model, "chat_template_kwargs"): "a class has them: [chat_template_kwargs] in classes/NAME.toml",
}
"""What to do about keys that people write where no such key is."""

TABLE_HINTS: Mapping[str, str] = {
    **dict.fromkeys(("class", "classes"), "a class is a file of its own: classes/NAME.toml"),
    **dict.fromkeys(
        ("message", "sampling", "vars", "examples", "chat_template_kwargs"),
        "it belongs in a class: classes/NAME.toml",
    ),
    "sources": "write [[source]], once for every source",
}
"""What to do about tables that people write in `fafo.toml` where no such table is."""

MISSING: Mapping[tuple[type, str], str] = {
    (ProjectTable, "name"): 'add to [project] a line such as: name = "probes"',
    (Model, "path"): 'add a hub id, a folder, a .gguf file or package:NAME/FILE: path = "..."',
    (Source, "name"): 'add a line such as: name = "elements"',
    (Source, "type"): 'add a line: type = "files", "sql" or "dataset"',
    (Source, "key"): 'name the column that names a row: key = "id"; or write key = "content"',
    (Message, "role"): ROLE_IS_MISSING,
    (Examples, "path"): 'add a line such as: path = "prompts/examples.jsonl"',
    (PromptClass, "sources"): 'name the sources whose rows it asks about: sources = ["elements"]',
    (PromptClass, "messages"): "add a [[message]] with a role, and with prompt or content",
}
"""What to do where a key is missing."""

HOMES: Sequence[Mapping[type, str]] = (
    {
        PromptClass: "at the top of the file, above the first table",
        Message: "in a [[message]]",
        Sampling: "in [sampling]",
    },
    {
        Run: "in [run]",
        ProjectTable: "in [project]",
        Model: "in [model]",
        Engine: "in [engine]",
        Launch: "in engine.launch",
        Source: "in a [[source]]",
        Verify: "in [verify]",
        QueueDepth: "in run.queue",
        SegmentPolicy: "in run.segment",
        StopWhen: "in run.stop_when",
    },
)
"""Of each kind of file: where a table's keys belong, for keys that stand in the wrong one."""
