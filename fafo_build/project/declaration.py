"""The nouns of a project: what `fafo.toml` and `classes/*.toml` declare. No I/O; every field says its unit.

A default stands here and nowhere else. What a file may say is what these classes have fields for.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

Role = Literal["system", "user", "assistant", "tool"]
Dtype = Literal["bfloat16", "float16", "float32"]
EngineKind = Literal["transformers", "sglang", "fake"]
SourceType = Literal["files", "sql", "dataset"]
FileFormat = Literal["jsonl", "csv", "parquet"]
ClassFormat = Literal["chat", "raw", "completion"]

FORMS = ("json_schema", "regex", "ebnf")
"""The keys of `[sampling]` that give an output its form; a class has one of them at most."""


@frozen
class ProjectTable:
    """`[project]`: the project's name, and where its folders are."""

    name: str
    """What the project is called."""
    classes: str = "classes"
    """The folder of the class files. Folders are relative to the project, or absolute."""
    prompts: str = "prompts"
    """The folder of the prompts."""
    build: str = "build"
    """The folder where `fafo build` writes artifacts and the lock."""
    runs: str = "runs"
    """The folder where runs keep their queue and their results."""


@frozen
class Model:
    """`[model]` or `[models.NAME]`: whose tokenizer, chat template and weights are meant."""

    name: str
    """`default` for `[model]`."""
    path: str
    """A hub id, a local folder, a `.gguf` file, or `package:NAME/FILE`."""
    revision: str | None = None
    """A hub revision, or a word of the user's for a local folder."""
    dtype: Dtype = "bfloat16"
    """What the embedded engine computes in."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run on this machine."""
    chat_template: str | None = None
    """A file in the project that replaces the model's own chat template."""
    date: datetime.date | None = None
    """Today, for a chat template that inserts today's date."""


@frozen
class Launch:
    """`launch` of an engine: SGLang servers that fafo starts itself, on this machine."""

    replicas: int = 1
    """How many servers. Each has the whole model."""
    gpus: int = 1
    """GPUs of each server, its share of the visible ones; 0 leaves to the servers which they take."""
    args: tuple[str, ...] = ()
    """Flags for the servers, one string for each word."""
    port: int | None = None
    """The first server's port, the others have the next ones, passing over what is taken; any free ones where
    it isn't given."""
    python: str | None = None
    """The Python that has the package `sglang`; fafo's own where it isn't given."""
    command: tuple[str, ...] = ()
    """What stands in for `python -m sglang.launch_server`: a program and its first arguments, run in the
    project's folder."""
    env: Mapping[str, str] = field(factory=dict)
    """Environment variables of the servers, besides fafo's own."""
    start_within: float = 1800.0
    """Seconds from each start of a server until it must be ready; it loads the model in that time."""


@frozen
class Engine:
    """`[engine]` or `[engines.NAME]`: who answers."""

    name: str
    """`default` for `[engine]`."""
    kind: EngineKind = "transformers"
    """`transformers`: in this process. `sglang`: a running server. `fake`: instant made-up answers."""
    urls: tuple[str, ...] = ()
    """For `sglang`: the servers' base URLs; each has its own cache, and is warmed by itself."""
    launch: Launch | None = None
    """For `sglang`, in place of `urls`: servers that fafo starts itself."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's API key."""
    max_running: int | None = None
    """`transformers`: items in a batch, 16 where not given. `sglang`: requests in flight at a server; where
    not given, what it runs and 128 that wait."""
    timeout_silence: float = 600.0
    """Seconds without its whole answer after which a request counts as lost."""


@frozen
class Source:
    """`[[source]]`: where rows come from."""

    name: str
    """What the source is called; part of every item's identity."""
    type: SourceType
    """`files`: JSONL, CSV or Parquet. `sql`: a query on a SQLite database. `dataset`: a folder that
    `datasets.save_to_disk` wrote."""
    key: tuple[str, ...]
    """The columns that name a row; `content` alone means the hash of the row's content."""
    path: tuple[str, ...] = ()
    """`files`: paths or globs. `dataset`: one folder. Relative to the project."""
    format: FileFormat | None = None
    """`files`: what they are; from the file name's ending where not given."""
    url: str | None = None
    """`sql`: `sqlite:///path`."""
    query: str | None = None
    """`sql`: one SELECT."""
    limit: int | None = None
    """The most rows to take."""


@frozen
class QueueDepth:
    """`run.queue`: how many items wait. Below `low` more are taken from the sources, up to `high`."""

    low: int = 20_000
    """Items. With fewer waiting than this, more are taken from the sources."""
    high: int = 100_000
    """Items. Up to this many are taken."""


@frozen
class SegmentPolicy:
    """`run.segment`: when a segment file is sealed and the next one begun."""

    size: int = 256 * 1024 * 1024
    """Bytes."""
    idle: float = 30.0
    """Seconds without an append."""


@frozen
class StopWhen:
    """`run.stop_when`: of which outcomes a run ends before it is done. Shares of its own outcomes, 0 to 1."""

    failed: float | None = None
    """The largest share that may be failures; any where it isn't given."""
    empty: float | None = None
    """The largest share that may be answers without a token; any where it isn't given."""


@frozen
class Run:
    """`[run]`."""

    lanes: tuple[int, ...] = (128, 512, 2048, 8192, 32768)
    """Upper bounds of prompt length, in tokens, rising."""
    attempts: int = 3
    """How often an item is tried before it becomes a failure record."""
    queue: QueueDepth = field(factory=QueueDepth)
    lease: float = 900.0
    """Seconds after which an item that nobody finished, or says to be at work on, is handed out again."""
    segment: SegmentPolicy = field(factory=SegmentPolicy)
    poll: float = 30.0
    """Seconds between two looks of a service for new rows in its sources."""
    stop_within: float = 30.0
    """Seconds after SIGTERM within which what is at the engine may still be answered."""
    stop_when: StopWhen = field(factory=StopWhen)
    network_file_system: bool = False
    """Whether the run's folder may lie on a network file system."""


@frozen
class Verify:
    """`[verify]`."""

    min_hit_rate: float = 0.99
    """Of the ceiling; 0 to 1."""


@frozen
class Message:
    """`[[message]]` of a class: one turn of the conversation. Exactly one of `prompt` and `content`."""

    role: Role | None = None
    """Whose turn it is. Of a class of format `chat`, which needs one; the others have none."""
    prompt: str | None = None
    """A file in the project's prompts folder."""
    content: str | None = None
    """The Jinja template itself."""
    prefill: bool = False
    """Whether it is the beginning of the answer: the last message, of role `assistant`."""
    line: int = 1
    """1-based line of the class file at which the text of `content` begins, for error positions."""


@frozen
class Examples:
    """`[examples]` of a class: few-shot rows, seen by its prompts as `examples`."""

    path: str
    """A file in the project: JSONL, or TOML with `[[example]]` tables."""


@frozen
class Sampling:
    """`[sampling]` of a class: what the engine is asked for."""

    max_new_tokens: int = 128
    """The longest output, in tokens."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """The likeliest tokens that together have this share."""
    top_k: int | None = None
    """The so many likeliest tokens; all of them where it is not given."""
    min_p: float = 0.0
    """Only tokens at least so likely, as a share of the likeliest one."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time that it stands in the output so far; -2 to 2."""
    presence_penalty: float = 0.0
    """Taken once from the logit of every token of the output so far; -2 to 2."""
    repetition_penalty: float = 1.0
    """Divides the logit of every token of the output so far, multiplies a negative one; above 0, up to 2."""
    stop: tuple[str, ...] = ()
    """Texts that end an output; the tokens of the one that did are its last."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end an output, besides the model's own."""
    json_schema: str | None = None
    """A JSON Schema that the whole output follows: its file in the project; for engines its text."""
    regex: str | None = None
    """What the whole output matches."""
    ebnf: str | None = None
    """The grammar that the whole output follows: its text."""
    samples: int = 1
    """How many outputs per row; not part of the sampling hash, since each has an identity of its own."""


@frozen
class PromptClass:
    """`classes/NAME.toml`: the messages, sampling parameters and sources of one kind of request."""

    name: str
    """The file's name without `.toml`."""
    file: str
    """Relative to the project, for error messages: `classes/exam.toml`."""
    sources: tuple[str, ...]
    """The sources whose rows it asks about."""
    messages: tuple[Message, ...]
    """The turns of the conversation, in order."""
    description: str = ""
    """For people."""
    format: ClassFormat = "chat"
    """What makes one text of the messages: the model's chat template; nothing (`raw`); nothing but what the
    tokenizer puts around every text (`completion`)."""
    model: str = "default"
    """Whose tokenizer, chat template and weights are meant; needn't be said where there is one only."""
    engine: str = "default"
    """Who answers; needn't be said where there is one only."""
    vars: Mapping[str, Any] = field(factory=dict)
    """Constants for the prompts: plain TOML values; dates and times as ISO text."""
    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)
    """What the chat template sees besides the messages: plain TOML values, dates and times as ISO text."""
    examples: Examples | None = None
    sampling: Sampling = field(factory=Sampling)


@frozen
class Project:
    """A folder with `fafo.toml`, its prompts and its classes."""

    root: Path
    """Absolute."""
    name: str
    models: Mapping[str, Model]
    engines: Mapping[str, Engine]
    sources: Mapping[str, Source]
    """In the order of the file."""
    classes: Mapping[str, PromptClass]
    """In the order of their names."""
    run: Run
    verify: Verify
    prompts_dir: Path
    """These four are absolute."""
    classes_dir: Path
    build_dir: Path
    runs_dir: Path
