"""The open segments of one log: where an entry goes, provenance once per segment, group commit.

It knows routes and frames; what a payload means belongs to the queue and the results.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from attrs import define, field

from fafo_run.log.format import NO_IDENTITY, Header, Kind, SegmentKind
from fafo_run.log.fs import Disk
from fafo_run.log.listing import segments
from fafo_run.log.payload import number_provenance
from fafo_run.log.segment import Frame, SegmentWriter

SEGMENT_BYTES = 256 << 20
IDLE = 30.0
"""Seconds without an append after which a segment is sealed."""


class Route(NamedTuple):
    """What all entries of a segment share."""

    model_fingerprint: bytes
    artifact: bytes
    lane: int


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

    def stage(self, drafts: Sequence[Draft]) -> list[int]:
        """Write drafts, after the provenance that is new to this segment; return the drafts' offsets."""
        fresh: dict[bytes, int] = {}
        frames: list[Frame] = []
        for draft in drafts:
            number = self.numbers.get(draft.provenance, fresh.get(draft.provenance))
            if number is None:
                number = fresh[draft.provenance] = len(self.numbers) + len(fresh)
                frames.append(_provenance_frame(number, draft.provenance))
            word, payload = draft.pack(number)
            frames.append(Frame(word, draft.identity, payload))
        offsets = self.writer.stage(frames)
        self.numbers |= fresh
        return [at for at, frame in zip(offsets, frames, strict=True) if frame.word != Kind.PROVENANCE]

    def seal(self) -> None:
        """Seal. The provenance stands once more before the seal, so that one bad sector can't hide it."""
        self.writer.seal([_provenance_frame(number, packed) for packed, number in self.numbers.items()])


class Placed(NamedTuple):
    """Where a draft went."""

    segment: OpenSegment
    offset: int


class Appender:
    """Appends to one folder of segments, at most one open segment per route. Not thread-safe."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        kind: SegmentKind,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        first_sequence: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
        new_uuid: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
    ) -> None:
        self.open: dict[Route, OpenSegment] = {}
        self._disk = disk
        self._folder = folder
        self._kind = kind
        self._segment_bytes = segment_bytes
        self._idle = idle
        self._monotonic = monotonic
        self._next = first_sequence or 1
        self.skip(segment.sequence for segment in segments(disk, folder))
        self._now = now
        self._new_uuid = new_uuid

    def commit(self, drafts: Sequence[Draft]) -> list[Placed]:
        """Append all drafts, durably, with one sync per segment; return where each went, in order.

        Raises `DiskFull` or `StoreError` when the disk refuses a write: then none of the drafts is there.
        Raises `SyncFailed` when it refuses a sync: then nothing may be acknowledged any more.
        """
        routed: dict[Route, list[int]] = {}
        for index, draft in enumerate(drafts):
            routed.setdefault(draft.route, []).append(index)
        placed: dict[int, Placed] = {}
        touched: list[tuple[OpenSegment, dict[bytes, int]]] = []
        try:
            for route, indices in routed.items():
                segment = self._segment(route)
                touched.append((segment, dict(segment.numbers)))
                offsets = segment.stage([drafts[index] for index in indices])
                for index, offset in zip(indices, offsets, strict=True):
                    placed[index] = Placed(segment, offset)
        except BaseException:
            for segment, numbers in touched:
                segment.writer.rollback()
                segment.numbers = numbers
            raise
        for segment, _ in touched:
            segment.writer.sync()
            segment.appended = self._monotonic()
        return [placed[index] for index in range(len(drafts))]

    def skip(self, sequences: Iterable[int]) -> None:
        """Never use these numbers, nor smaller ones: somebody knows segments that had them."""
        self._next = max([self._next, *(at + 1 for at in sequences)])

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
        header = Header(self._kind, self._next, self._new_uuid(), *route, self._now())
        self._next += 1
        segment = self.open[route] = OpenSegment(SegmentWriter.create(self._disk, self._folder, header))
        return segment


def _provenance_frame(number: int, packed: bytes) -> Frame:
    return Frame(Kind.PROVENANCE, NO_IDENTITY, number_provenance(number, packed))


def route_of(model_fingerprint: str, artifact: str, lane: int) -> Route:
    """Return the route of an entry; the two hashes are 64 hex digits. Raises `ValueError` if they aren't."""
    route = Route(bytes.fromhex(model_fingerprint), bytes.fromhex(artifact), lane)
    if (len(route.model_fingerprint), len(route.artifact)) != (32, 32):
        raise ValueError("a route takes two hashes of 64 hex digits each")
    return route
