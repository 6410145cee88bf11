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


@frozen
class ProjectTable:
    """`[project]`: the project's name, and where its folders are."""

    name: str
    classes: str = "classes"
    """Folders: relative to the project, or absolute."""
    prompts: str = "prompts"
    build: str = "build"
    runs: str = "runs"


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
    chat_template: str | None = None
    """A file in the project that replaces the model's own chat template."""
    date: datetime.date | None = None
    """Today, for a chat template that inserts today's date."""


@frozen
class Engine:
    """`[engine]` or `[engines.NAME]`: who answers."""

    name: str
    """`default` for `[engine]`."""
    kind: EngineKind = "transformers"
    urls: tuple[str, ...] = ()
    """For `sglang`: the servers' base URLs; one in this version."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the server's API key."""
    max_running: int = 16
    """`transformers`: items in a batch. `sglang`: requests in flight at a server."""
    timeout_silence: float = 600.0
    """Seconds without a byte from the server after which a request counts as lost."""


@frozen
class Source:
    """`[[source]]`: where rows come from."""

    name: str
    type: SourceType
    key: tuple[str, ...]
    """The columns that name a row; `("content",)` means the hash of the row's content."""
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
    high: int = 100_000


@frozen
class SegmentPolicy:
    """`run.segment`: when a segment file is sealed and the next one begun."""

    size: int = 256 * 1024 * 1024
    """Bytes."""
    idle: float = 30.0
    """Seconds without an append."""


@frozen
class Run:
    """`[run]`."""

    lanes: tuple[int, ...] = (128, 512, 2048, 8192, 32768)
    """Upper bounds of prompt length, in tokens, rising."""
    attempts: int = 3
    """How often an item is tried before it becomes a failure record."""
    queue: QueueDepth = field(factory=QueueDepth)
    lease: float = 900.0
    """Seconds after which an item that nobody finished is handed out again."""
    segment: SegmentPolicy = field(factory=SegmentPolicy)


@frozen
class Verify:
    """`[verify]`."""

    min_hit_rate: float = 0.99
    """Of the ceiling; 0 to 1."""


@frozen
class Message:
    """`[[message]]` of a class: one turn of the conversation. Exactly one of `prompt` and `content`."""

    role: Role
    prompt: str | None = None
    """A file in the project's prompts folder."""
    content: str | None = None
    """The template itself."""
    line: int = 1
    """1-based line of the class file at which the text of `content` begins, for error positions."""


@frozen
class Examples:
    """`[examples]` of a class: few-shot rows, seen by its prompts as `examples`."""

    path: str
    """A JSONL file in the project."""


@frozen
class Sampling:
    """`[sampling]` of a class: what the engine is asked for."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    """None: all tokens."""
    min_p: float = 0.0
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
    messages: tuple[Message, ...]
    description: str = ""
    model: str = "default"
    engine: str = "default"
    vars: Mapping[str, Any] = field(factory=dict)
    """Plain TOML values; dates and times as ISO text."""
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
