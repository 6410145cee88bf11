"""What the keys of one table must be together, and what to do about keys that are missing or strange.

Rules look at a table as it was written, so that they speak even where another key of it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from fafo_build.project.values import MistakeError, describe

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
_SERVER_KEYS = ("urls", "api_key_env", "timeout_silence")


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


def _source(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in _SOURCE_KEYS:
        return
    for key in ("path", "format", "url", "query"):
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


def _engine(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    kind = table.get("kind", "transformers")
    if kind == "sglang":
        if not table.get("urls", ()):
            yield MistakeError(
                'an engine of kind "sglang" needs the URL of its server',
                cure='add a line such as: urls = ["http://127.0.0.1:30000"], or set FAFO_ENGINE_URLS',
                at="table",
                lacks=("urls",),
            )
        return
    if kind not in ("transformers", "fake"):
        return
    for key in _SERVER_KEYS:
        if key in table:
            yield MistakeError(
                f'an engine of kind "{kind}" has no server, so it has no {key}',
                cure='take it out, or write kind = "sglang"',
                path=(key,),
                at="key",
            )


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


def _class(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    if table.get("message") == []:
        yield MistakeError("a class needs at least one message", cure="add a [[message]]", path=("message",))
    messages = table.get("message")
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, Mapping) and last.get("role") == "assistant":
        yield MistakeError(
            "the last message is the assistant's, and a model can't go on with it in this version (prefill)",
            cure="end with a user message; it may ask for an answer that begins like that",
            path=("message", len(messages or ()) - 1, "role"),
        )


RULES: Mapping[type, Rule] = {
    ProjectTable: _project,
    Source: _source,
    Engine: _engine,
    QueueDepth: _queue,
    Message: _message,
    PromptClass: _class,
}
"""What the keys of one table must be together."""

_LATER: Mapping[tuple[type, str], str] = {
    (Engine, "launch"): "start the server yourself and name it in urls",
    (Source, "where"): "filter in the query of an sql source",
    (Source, "select"): "shape the text in the prompt, or in the query of an sql source",
    (Run, "stop_when"): "watch the failures of a run with `fafo status`",
    (Message, "prefill"): "end the conversation with a user message",
    (Sampling, "json_schema"): "ask for the form in the prompt",
    (Sampling, "regex"): "ask for the form in the prompt",
    (Sampling, "ebnf"): "ask for the form in the prompt",
    (Sampling, "stop"): "cut the outputs where they are used",
    (Sampling, "frequency_penalty"): "take it out",
    (Sampling, "presence_penalty"): "take it out",
    (Sampling, "repetition_penalty"): "take it out",
}
"""Keys that are planned, and what to do without them."""

HINTS: Mapping[tuple[type, str], str] = {
    **{place: f"{place[1]} is not in this version; {instead}" for place, instead in _LATER.items()},
    (Sampling, "n"): "write samples, for several outputs per row",
    (Sampling, "seed"): "take it out: every item has a seed of its own, made from what it is",
    (Model, "name"): "the name stands in the head of the table: [models.NAME]",
    (Engine, "name"): "the name stands in the head of the table: [engines.NAME]",
    (PromptClass, "name"): "a class has the name of its file",
}
"""What to do about keys that people write where no such key is."""

TABLE_HINTS: Mapping[str, str] = {
    **dict.fromkeys(("class", "classes"), "a class is a file of its own: classes/NAME.toml"),
    **dict.fromkeys(("message", "sampling", "vars", "examples"), "it belongs in a class: classes/NAME.toml"),
    "sources": "write [[source]], once for every source",
}
"""What to do about tables that people write in `fafo.toml` where no such table is."""

MISSING: Mapping[tuple[type, str], str] = {
    (ProjectTable, "name"): 'add to [project] a line such as: name = "probes"',
    (Model, "path"): 'add a hub id, a folder, a .gguf file or package:NAME/FILE: path = "..."',
    (Source, "name"): 'add a line such as: name = "elements"',
    (Source, "type"): 'add a line: type = "files", "sql" or "dataset"',
    (Source, "key"): 'name the column that names a row: key = "id"; or write key = "content"',
    (Message, "role"): 'add a line: role = "system", "user" or "assistant"',
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
        Source: "in a [[source]]",
        Verify: "in [verify]",
        QueueDepth: "in run.queue",
        SegmentPolicy: "in run.segment",
    },
)
"""Of each kind of file: where a table's keys belong, for keys that stand in the wrong one."""
