"""The open segments of one log: where an entry goes, provenance once per segment, group commit.

It knows routes and frames; what a payload means belongs to the queue and the results.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import define, field

from fafo_run.log.batch import Frames
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, Kind, SegmentKind
from fafo_run.log.locking import folder_lock
from fafo_run.log.payload import number_provenance, numbered
from fafo_run.log.route import Route
from fafo_run.log.segment import SegmentWriter

SEGMENT_BYTES = 256 << 20
COMMIT_EVERY = 1 << 20
"""Bytes after which a segment that nobody follows gets a COMMIT: a scan proves so much at once."""
IDLE = 30.0
"""Seconds without an append after which a segment is sealed."""


class Draft(NamedTuple):
    """An entry that has no segment yet; a tuple because there are thousands per batch."""

    route: Route
    provenance: bytes
    """As `payload.pack_provenance` gives it."""
    word: int
    """Kind and flags."""
    identity: bytes
    payload: bytes
    """With 0 for the number that its segment has for its provenance."""


@define(eq=False)
class OpenSegment:
    """A segment that still grows, and the provenance that it holds by number."""

    writer: SegmentWriter
    numbers: dict[bytes, int] = field(factory=dict)
    appended: float = 0.0
    """When something was last appended, in seconds of the monotonic clock."""

    def introduce(self, provenances: Iterable[bytes]) -> None:
        """Make the provenance durable that is new to this segment.

        Before anything that refers to it: a power cut may keep the later sectors of one write and lose the
        earlier ones, and an entry without its provenance can't be read. Raises `StoreError`.
        """
        fresh = [packed for packed in dict.fromkeys(provenances) if packed not in self.numbers]
        if not fresh:
            return
        numbers = {packed: number for number, packed in enumerate(fresh, len(self.numbers))}
        self.writer.stage(Frames.unnamed(Kind.PROVENANCE, _provenance_payloads(numbers)))
        self.writer.sync()
        self.numbers |= numbers

    def stage(self, provenances: Iterable[bytes], frames: Frames) -> list[int]:
        """Write what drafts hold whose provenance was introduced; return their offsets."""
        if len(self.numbers) > 1:
            numbers = map(self.numbers.__getitem__, provenances)
            frames = frames._replace(payloads=list(map(numbered, frames.payloads, numbers)))
        return self.writer.stage(frames)

    def seal(self) -> None:
        """Seal. The provenance stands once more before the seal, so that one bad sector can't hide it."""
        self.writer.seal(_provenance_payloads(self.numbers))


class Placed(NamedTuple):
    """Where those drafts of a batch went that are of one route."""

    segment: OpenSegment
    which: Sequence[int]
    """Which drafts, by their place in the batch, in order."""
    offsets: list[int]
    """Of each of them."""


class Appender:
    """Appends to one folder of segments, at most one open segment per route. Not thread-safe."""

    def __init__(
        self,
        directory: RunDirectory,
        kind: SegmentKind,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        followed: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
        new_uuid: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
    ) -> None:
        """`followed` says that another process hands out what is appended: it is told what is durable."""
        self.open: dict[Route, OpenSegment] = {}
        self._directory = directory
        self._folder = directory.queue if kind is SegmentKind.QUEUE else directory.results
        self._kind = kind
        self._segment_bytes = segment_bytes
        self._idle = idle
        self._followed = followed
        self._monotonic = monotonic
        self._least = 1
        self._now = now
        self._new_uuid = new_uuid

    def commit(self, drafts: Sequence[Draft]) -> list[Placed]:
        """Append all drafts, durably, with one sync per segment; return where they went, by segment.

        Provenance that is new to a segment has a sync of its own before.

        Raises `DiskFull` or `StoreError` when the disk refuses a write: then none of the drafts is there.
        Raises `SyncFailed` when it refuses a sync: then nothing may be acknowledged any more.
        """
        placed: list[Placed] = []
        touched: list[OpenSegment] = []
        try:
            for route, which, (provenances, *columns) in _by_route(drafts):
                segment = self._segment(route)
                segment.introduce(provenances)
                touched.append(segment)
                placed.append(Placed(segment, which, segment.stage(provenances, Frames(*columns))))
        except BaseException:
            for segment in touched:
                segment.writer.rollback()
            raise
        for segment in touched:
            segment.writer.sync()
        for segment in touched:
            if self._followed or segment.writer.unvouched >= COMMIT_EVERY:
                segment.writer.vouch()
            segment.appended = self._monotonic()
        return placed

    def skip(self, sequences: Iterable[int]) -> None:
        """Never use these numbers, nor smaller ones: somebody knows segments that had them."""
        self._least = max([self._least, *(at + 1 for at in sequences)])

    def due(self) -> list[OpenSegment]:
        """Return the open segments to seal: of full size, long idle, or not to be appended to any more."""
        latest = self._monotonic() - self._idle
        return [
            segment
            for segment in self.open.values()
            if segment.writer.synced >= self._segment_bytes
            or segment.appended <= latest
            or not segment.writer.usable
        ]

    def roll(self, segment: OpenSegment) -> None:
        """Seal a segment and forget it; its file stays open for the caller. A damaged one isn't sealed."""
        if segment.writer.usable:
            segment.seal()
        route = segment.writer.header.route
        if self.open.get(route) is segment:
            del self.open[route]

    def _segment(self, route: Route) -> OpenSegment:
        segment = self.open.get(route)
        if segment is not None and segment.writer.usable:
            return segment
        disk, folder = self._directory.disk, self._folder
        with folder_lock(disk, folder):
            sequence = max(self._least, self._directory.next_sequence(folder))
            self._least = sequence + 1
            header = Header(self._kind, sequence, self._new_uuid(), *route, self._now())
            segment = self.open[route] = OpenSegment(SegmentWriter.create(disk, folder, header))
        return segment


def _by_route(drafts: Sequence[Draft]) -> Iterator[tuple[Route, Sequence[int], Sequence[Sequence[Any]]]]:
    """Yield each route with the numbers of its drafts and, column by column, what else they hold."""
    if not drafts:
        return
    routes, *columns = zip(*drafts, strict=True)
    if routes.count(routes[0]) == len(routes):
        yield routes[0], range(len(routes)), columns
        return
    routed: dict[Route, list[int]] = {}
    for number, route in enumerate(routes):
        routed.setdefault(route, []).append(number)
    for route, which in routed.items():
        yield route, which, [[column[number] for number in which] for column in columns]


def _provenance_payloads(numbers: Mapping[bytes, int]) -> list[bytes]:
    """Return the payloads of PROVENANCE entries."""
    return [number_provenance(number, packed) for packed, number in numbers.items()]
