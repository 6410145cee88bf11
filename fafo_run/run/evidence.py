"""What servers were and did during a run: `servers.jsonl`, one JSON line per event, appended as it happens.

It is evidence for `fafo verify` and for people, and only that: nothing that a run does depends on it. A line
that a crash tore is passed over, and counted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fafo_build.errors import Problem, StoreError
from fafo_run.engines.base import Counters
from fafo_run.item import Value

NAME = "servers.jsonl"


class Sums(Struct, frozen=True):
    """What this run had one server answer, since the server's last `started` or cold `returned` event: items,
    warm-ups and probes together."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lost: int = 0
    """Requests without an answer: the server may have computed them, and counted them."""


class Event(Struct, frozen=True, tag_field="event", kw_only=True):
    """What all events say."""

    at: float
    """Seconds since the epoch."""
    session: str
    """Which `fafo run` of this run's folder: 32 hex digits."""
    server: str
    """Its URL; `in process` for an engine that is none."""


class Started(Event, frozen=True, tag="started", kw_only=True):
    """The run began to use a server."""

    version: str
    model: str
    page_size: Annotated[int, Meta(ge=1)]
    prefix_cache: bool
    cache_tokens: int | None = None
    """How many tokens its cache holds, per rank; None when it doesn't tell."""
    ranks: int = 1
    running: int = 1
    """How many requests of this run a rank computes at the same time, at most."""
    settings: dict[str, Value] = {}
    counters: Counters | None = None
    """None when the server doesn't tell (no --enable-metrics)."""


class Warmed(Event, frozen=True, tag="warmed", kw_only=True):
    """A warm-up has finished."""

    artifact: str
    rank: int
    prompt_tokens: int
    cached_tokens: int
    why: Literal["first", "restart", "evicted"]
    """`restart`: the server came back, and may be cold. `evicted`: an item found less than its ceiling."""


class Missed(Event, frozen=True, tag="missed", kw_only=True):
    """An item found less in the cache than its ceiling, though its prefix was warm. One per warm-up."""

    artifact: str
    rank: int
    cached_tokens: int
    ceiling: int


class Quarantined(Event, frozen=True, tag="quarantined", kw_only=True):
    """The circuit breaker opened: nothing is sent to the server until a probe is answered."""

    reason: str


class Returned(Event, frozen=True, tag="returned", kw_only=True):
    """A quarantined server answers again."""

    after: float
    """Seconds of quarantine."""
    restarted: bool
    """Whether it is another process than before: its cache is cold, and it counts from 0."""
    counters: Counters | None = None


class Excluded(Event, frozen=True, tag="excluded", kw_only=True):
    """The server isn't asked any more in this session: it serves another model, for instance."""

    reason: str


class Ended(Event, frozen=True, tag="ended", kw_only=True):
    """The run stopped using a server. Missing when the run was killed."""

    sums: Sums
    counters: Counters | None = None


AnyEvent = Started | Warmed | Missed | Quarantined | Returned | Excluded | Ended

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class Evidence:
    """Appends events of one session. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the run's; the file is made at the first event."""
        self._path = folder / NAME
        self.session = uuid.uuid4().hex
        self._begun = False

    def add(self, kind: type[AnyEvent], server: str, **said: object) -> None:
        """Append one event, of now. Raises `StoreError` when the disk refuses."""
        event = kind(at=time.time(), session=self.session, server=server, **said)  # type: ignore[arg-type]
        try:
            # A whole line in one write. The first one closes a line that a crash may have torn.
            with self._path.open("ab") as file:
                file.write((b"" if self._begun else b"\n") + msgspec.json.encode(event) + b"\n")
            self._begun = True
        except OSError as error:
            problem = Problem(f"{self._path} can't be written: {error}", cure="make room, or see to the disk")
            raise StoreError(problem) from error


def read(folder: Path) -> tuple[list[AnyEvent], int]:
    """Return the events of a run in order, and how many lines can't be read; none when there is no file.

    Raises `StoreError` when the file can't be read.
    """
    path = folder / NAME
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise StoreError(Problem(f"{path} can't be read: {error}", cure="see to the disk")) from error
    events, torn = list[AnyEvent](), 0
    for line in filter(None, lines):
        try:
            events.append(_decoder.decode(line))
        except msgspec.MsgspecError:
            torn += 1
    return events, torn


def lives(events: list[AnyEvent]) -> Iterator[list[AnyEvent]]:
    """Yield the events of each (session, server), cut where the server came back as another process."""
    open_lives: dict[tuple[str, str], list[AnyEvent]] = {}
    for event in events:
        key = event.session, event.server
        if isinstance(event, Returned) and event.restarted and key in open_lives:
            yield open_lives.pop(key)
        open_lives.setdefault(key, []).append(event)
    yield from open_lives.values()
