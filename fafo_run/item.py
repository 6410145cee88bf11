"""The nouns of a run, from a source's row to the record of what came back. No I/O, no behaviour.

A reader who knows these can read everything else in `fafo_run`. Identities, hashes and seeds are made in
`fafo_run.identity`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, overload

from attrs import field, frozen
from msgspec import Struct

Value = Any
"""A plain JSON value: None, bool, int, float, str, or a list or dict (with str keys) of these."""

Ids = tuple[int, ...]
"""Token ids, in order."""


class PackedIds(Sequence[int]):
    """Token ids as the log holds them: most pass from the queue to the results without being looked at.

    Equal, as a sequence, to the tuple of the same ids; u16 when every id fits, else u32.
    """

    __slots__ = ("data", "wide")

    def __init__(self, data: bytes, *, wide: bool) -> None:
        """`data` is little-endian. Raises `ValueError` when it isn't a whole number of ids."""
        if len(data) % (4 if wide else 2):
            raise ValueError(f"{len(data)} bytes of token ids of {4 if wide else 2} bytes each")
        self.data = data
        self.wide = wide

    @property
    def ids(self) -> Ids:
        """The ids."""
        return tuple(self._array())

    def widened(self) -> PackedIds:
        """Return the same ids as u32."""
        return self if self.wide else PackedIds(_little(array("I", self._array())).tobytes(), wide=True)

    def __len__(self) -> int:
        return len(self.data) // (4 if self.wide else 2)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Ids: ...
    def __getitem__(self, at: int | slice) -> int | Ids:
        return self.ids[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._array())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedIds):
            return self.ids == other.ids if self.wide != other.wide else self.data == other.data
        return self.ids == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.ids)

    def __repr__(self) -> str:
        return repr(self.ids)

    def _array(self) -> array[int]:
        return _little(array("I" if self.wide else "H", self.data))


def pack_ids(ids: Iterable[int]) -> PackedIds:
    """Pack ids; what is packed stays as it is. Raises `OverflowError` for an id that doesn't fit u32."""
    if isinstance(ids, PackedIds):
        return ids
    ids = tuple(ids)
    try:
        return PackedIds(_little(array("H", ids)).tobytes(), wide=False)
    except OverflowError:
        return PackedIds(_little(array("I", ids)).tobytes(), wide=True)


def _little(ids: array[int]) -> array[int]:
    """Turn an array from the machine's byte order to little-endian, or back."""
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


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
    """An id of the prompt isn't in the engine's vocabulary."""
    PROMPT_NOT_CANONICAL = "prompt_not_canonical"
    """The item's ids aren't what encoding the whole conversation once would give."""
    REJECTED = "rejected"
    """The engine refused this request and would refuse it again."""
    ANSWER_INVALID = "answer_invalid"
    """Every attempt brought an answer that can't be one to this prompt."""
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


class QueuedItem(Struct, frozen=True, gc=False):
    """An item that waits: everything that an engine needs, but for the prefix, which is in the artifact.

    A struct like `Claim`, since there are millions: `msgspec.structs.replace` is its `evolve`.
    """

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
    suffix: PackedIds
    """The ids after the artifact's prefix."""
    bounds: tuple[tuple[int, int], ...]
    """Per slot, where its ids begin and end within the suffix (end exclusive)."""
    prompt_tokens: int
    """Prefix and suffix together."""
    lane: int
    """Upper bound of the length bucket, in tokens."""
    attempts: int = 0
    """How many attempts brought no answer from an engine that lived."""
    retry: int = 0
    """How many times a failure of this item was put back by `fafo retry`."""
    failure: Failure | None = None
    """Why the item has no prompt that could be sent. It is recorded without an engine being asked."""


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

    ids: PackedIds = field(converter=pack_ids)
    """Output ids; what stopped it is part of it: a stop token the last id, a stop text in the last ids."""
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
    suffix: PackedIds = field(converter=pack_ids)
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
    retry: int = 0
    """How many failures of this item `fafo retry` had put back before; of two failures the later counts."""


class Claim(Struct, frozen=True, gc=False):
    """A queued item handed out under a lease. One per item, and in no reference cycle: cheap to make."""

    segment: bytes
    """16 bytes: the uuid of the queue segment."""
    offset: int
    """Of the entry within that segment, in bytes."""
    token: int
    """The attempt token: a completion with another one is late."""
    attempt: int
    """1 for the first time this item is handed out."""
    item: QueuedItem
