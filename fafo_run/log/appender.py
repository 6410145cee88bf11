"""The open segments of one log: where an entry goes, provenance once per segment, group commit.

It knows routes and frames; what a payload means belongs to the queue and the results.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from attrs import define, field

from fafo_run.log.batch import Frame
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import NO_IDENTITY, Header, Kind, SegmentKind
from fafo_run.log.locking import folder_lock
from fafo_run.log.payload import number_provenance
from fafo_run.log.route import Route
from fafo_run.log.segment import SegmentWriter

SEGMENT_BYTES = 256 << 20
COMMIT_EVERY = 1 << 20
"""Bytes after which a segment that nobody follows gets a COMMIT: a scan proves so much at once."""
IDLE = 30.0
"""Seconds without an append after which a segment is sealed."""


class Draft(NamedTuple):
    """An entry that has no segment yet; its payload names its provenance by the segment's number for it."""

    route: Route
    provenance: bytes
    """As `payload.pack_provenance` gives it."""
    identity: bytes
    pack: Callable[[int], tuple[int, bytes]]
    """Takes the provenance's number; returns the kind word and the payload."""


@define(eq=False)
class OpenSegment:
    """A segment that still grows, and the provenance that it holds by number."""

    writer: SegmentWriter
    numbers: dict[bytes, int] = field(factory=dict)
    appended: float = 0.0
    """When something was last appended, in seconds of the monotonic clock."""

    def introduce(self, drafts: Sequence[Draft]) -> None:
        """Make the provenance durable that is new to this segment.

        Before anything that refers to it: a power cut may keep the later sectors of one write and lose the
        earlier ones, and an entry without its provenance can't be read. Raises `StoreError`.
        """
        named = dict.fromkeys(map(_PROVENANCE, drafts))
        fresh = [packed for packed in named if packed not in self.numbers]
        if not fresh:
            return
        numbers = {packed: number for number, packed in enumerate(fresh, len(self.numbers))}
        self.writer.stage([_provenance_frame(number, packed) for packed, number in numbers.items()])
        self.writer.sync()
        self.numbers |= numbers

    def stage(self, drafts: Sequence[Draft]) -> list[int]:
        """Write drafts whose provenance was introduced; return their offsets."""
        numbers = self.numbers
        packed = [pack(numbers[provenance]) for _, provenance, _, pack in drafts]
        words, payloads = zip(*packed, strict=True)
        return self.writer.stage(list(map(_frame, zip(words, map(_IDENTITY, drafts), payloads, strict=True))))

    def seal(self) -> None:
        """Seal. The provenance stands once more before the seal, so that one bad sector can't hide it."""
        self.writer.seal([_provenance_frame(number, packed) for packed, number in self.numbers.items()])


class Placed(NamedTuple):
    """Where a draft went."""

    segment: OpenSegment
    offset: int


# Called for each of thousands of drafts per batch, and so without a Python frame.
_placed = partial(tuple.__new__, Placed)
_frame = partial(tuple.__new__, Frame)
_PROVENANCE = attrgetter("provenance")
_IDENTITY = attrgetter("identity")


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
        """Append all drafts, durably, with one sync per segment; return where each went, in order.

        Provenance that is new to a segment has a sync of its own before.

        Raises `DiskFull` or `StoreError` when the disk refuses a write: then none of the drafts is there.
        Raises `SyncFailed` when it refuses a sync: then nothing may be acknowledged any more.
        """
        routed: dict[Route, list[int]] = {}
        for index, draft in enumerate(drafts):
            routed.setdefault(draft.route, []).append(index)
        placed: dict[int, Placed] = {}
        touched: list[OpenSegment] = []
        try:
            for route, indices in routed.items():
                segment = self._segment(route)
                routed_here = [drafts[index] for index in indices]
                segment.introduce(routed_here)
                touched.append(segment)
                offsets = segment.stage(routed_here)
                placed |= zip(indices, map(_placed, zip(repeat(segment), offsets)), strict=True)
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
        return [placed[index] for index in range(len(drafts))]

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
        header = segment.writer.header
        route = Route(header.model_fingerprint, header.artifact, header.lane)
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


def _provenance_frame(number: int, packed: bytes) -> Frame:
    return Frame(Kind.PROVENANCE, NO_IDENTITY, number_provenance(number, packed))
