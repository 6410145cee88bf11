"""The nouns of a run, from a source's row to the record of what came back. No I/O, no behaviour.

A reader who knows these can read everything else in `fafo_run`. Identities, hashes and seeds are made in
`fafo_run.identity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from attrs import field, frozen

Value = Any
"""A plain JSON value: None, bool, int, float, str, or a list or dict (with str keys) of these."""

Ids = tuple[int, ...]
"""Token ids, in order."""


@frozen
class Row:
    """One good row of a source."""

    source: str
    """The name of the source, as declared."""
    key: str
    """What names the row within its source; whole numbers as decimals, several columns as a JSON array."""
    fields: Mapping[str, Value]
    """The columns, in the source's order."""
    content_hash: bytes
    """32 bytes: `identity.content_hash(fields)`."""
    where: str
    """Where a person finds the row: `elements.csv:17`, `world.db row 17`."""


@frozen
class BrokenRow:
    """A row that is there and can't be used. It becomes a failure record, and the others go on."""

    source: str
    key: str
    """The row's key if it could be read, else `!` and the first 16 hex digits of `content_hash`."""
    content_hash: bytes
    """32 bytes: sha256 over the row's raw bytes as they stand (or over what could be read of it)."""
    where: str
    message: str
    """What is wrong: `line 17 has 3 columns, the header has 4`."""


class FailureCode(Enum):
    """Why an item has no output. The value is what users see, filter by and find in docs/errors.md."""

    ROW_INVALID = "row_invalid"
    """The row can't be read, has no key, or lacks what the prompt needs (a missing or null field)."""
    TOO_LONG = "too_long"
    """Prompt and requested output don't fit the model's context."""
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"
    """An id of the prompt or of the answer isn't in the engine's vocabulary."""
    PROMPT_NOT_CANONICAL = "prompt_not_canonical"
    """The item's ids aren't what encoding the whole conversation once would give."""
    REJECTED = "rejected"
    """The engine refused this request and would refuse it again."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """Every attempt ended without an answer."""


class Stage(Enum):
    """Where on its way an item failed."""

    SOURCE = "source"
    PROMPT = "prompt"
    ENGINE = "engine"


@frozen
class Provenance:
    """What many entries share. Written once per segment, referred to by number."""

    class_name: str
    source: str
    artifact: str
    """Hash of the artifact, 64 hex digits."""
    model: str
    """The declared name of the model: its path, with `@revision` if one is declared."""
    model_fingerprint: str
    """64 hex digits."""
    sampling: Mapping[str, Value]
    """The sampling parameters that reach the engine, as in the class file."""
    sampling_hash: str
    """64 hex digits."""
    engine: str = ""
    """`transformers`, `sglang` or `fake`; empty in the queue, where no engine is chosen yet."""
    engine_version: str = ""
    engine_settings: Mapping[str, Value] = field(factory=dict)
    """What else decides the output: dtype and device, or what the server says of itself."""
    fafo_version: str = ""


@frozen
class QueuedItem:
    """An item that waits: everything that an engine needs, but for the prefix, which is in the artifact."""

    identity: bytes
    """16 bytes."""
    provenance: Provenance
    key: str
    sample: int
    """0-based; below the class's `samples`."""
    seed: int
    """The sampling seed, derived from the identity; 31 bits."""
    content_hash: bytes
    """32 bytes, of the row."""
    suffix: Ids
    """The ids after the artifact's prefix."""
    bounds: tuple[tuple[int, int], ...]
    """Per slot, where its ids begin and end within the suffix (end exclusive)."""
    prompt_tokens: int
    """Prefix and suffix together."""
    lane: int
    """Upper bound of the length bucket, in tokens."""


@frozen
class FinishReason:
    """Why the engine stopped, as it said it."""

    type: str
    """`stop`, `length` or `abort`; kept as it came if an engine knows others."""
    matched: int | str | None = None
    """The token id or the text that stopped it, if that was the reason."""


@frozen
class Output:
    """An answer."""

    ids: Ids
    """Output ids; a matched stop token is the last of them."""
    finish_reason: FinishReason
    cached_tokens: int
    """Prompt tokens that the engine took from its prefix cache, by its own count."""
    expected_cached_tokens: int
    """What a perfect cache would have served: the ceiling of this item."""

    @property
    def is_empty(self) -> bool:
        """True when there is no token but the one that ended the output."""
        return len(self.ids) <= (self.finish_reason.type == "stop" and self.finish_reason.matched is not None)


@frozen
class Failure:
    """Why there is no answer."""

    code: FailureCode
    stage: Stage
    message: str


@frozen
class Record:
    """What the results hold of one identity: an output or a failure, and all that led to it."""

    identity: bytes
    provenance: Provenance
    key: str
    sample: int
    seed: int
    content_hash: bytes
    suffix: Ids
    """Empty when the item failed before it had a prompt."""
    bounds: tuple[tuple[int, int], ...]
    prompt_tokens: int
    """0 when the item failed before it had a prompt."""
    lane: int
    attempt: int
    """1 for the first; 0 when no engine was asked."""
    server: str
    """Which server answered; empty for an engine in this process."""
    started: float
    """Seconds since the epoch at which the request left; of the failure, when there was no request."""
    seconds: float
    """How long the answer took."""
    outcome: Output | Failure


@frozen
class Claim:
    """A queued item handed out under a lease."""

    segment: bytes
    """16 bytes: the uuid of the queue segment."""
    offset: int
    """Of the entry within that segment, in bytes."""
    token: int
    """The attempt token: a completion with another one is late."""
    attempt: int
    """1 for the first time this item is handed out."""
    item: QueuedItem
