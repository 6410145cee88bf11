"""One segment of the queue as a run has it: how far it was handed out, how many entries live, its markers."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Container, Iterator

from attrs import define, field

from fafo_build.errors import Problem, StoreError
from fafo_run.item import Provenance, QueuedItem
from fafo_run.log.appender import OpenSegment, Route
from fafo_run.log.format import HEADER_SIZE, MARKER_AT, RETIRED, RETIRED_BYTES, Header, Kind
from fafo_run.log.fs import File
from fafo_run.log.payload import Undecodable
from fafo_run.log.provenance import ProvenanceTable
from fafo_run.log.reader import Entry, Gap, scan, walk
from fafo_run.queue.payload import read_item

_PIECE = 256 << 10
"""Bytes read at once for a claim, which takes few entries."""

Wanted = Callable[[QueuedItem], bool]
"""Which items somebody is after."""


@define(eq=False)
class Part:
    """A segment's state in memory; all of it but the file is derived. Not thread-safe."""

    file: File
    header: Header
    end: int
    """Where the durable entries end; nothing beyond is handed out or mapped."""
    live: int
    """Items that aren't RETIRED, claimed ones included."""
    gaps: frozenset[int] = frozenset()
    """Offsets of damage that recovery has already put aside."""
    aside: int = 0
    """Of the live items, how many nobody wants in this run."""
    segment: OpenSegment | None = None
    """Set while the segment still grows."""
    position: int = HEADER_SIZE
    """Everything before it was handed out, retired or skipped."""
    dirty: bool = False
    """Markers were set and not synced."""
    _markers: mmap.mmap | None = None
    _provenance: ProvenanceTable = field(factory=ProvenanceTable)

    @classmethod
    def load(cls, file: File, header: Header) -> Part:
        """Count what lives in a segment that is already there."""
        found = scan(file, header)
        return cls(file, header, found.end, found.live, frozenset(gap.offset for gap in found.gaps))

    @property
    def route(self) -> Route:
        """What all its entries share."""
        return Route(self.header.model_fingerprint, self.header.artifact, self.header.lane)

    @property
    def growing(self) -> bool:
        """True while entries may still be appended."""
        return self.segment is not None and self.segment.writer.usable

    def living(self, start: int = HEADER_SIZE) -> Iterator[Entry]:
        """Yield the ITEM entries from `start` on that aren't RETIRED.

        Raises `StoreError` at damage that wasn't there when the segment was opened.
        """
        for found in walk(self.file, self.header, start, self.end, piece=_PIECE):
            if isinstance(found, Gap):
                if found.offset not in self.gaps:
                    raise self._damaged(found.offset, found.reason)
            elif found.kind == Kind.PROVENANCE:
                self._provenance.add(found)
            elif found.kind == Kind.ITEM and found.marker != RETIRED:
                yield found

    def choose(
        self, limit: int, taken: Container[tuple[bytes, int]], wanted: Wanted
    ) -> tuple[list[tuple[int, QueuedItem]], int]:
        """Return up to `limit` wanted items that wait, with their offsets, and the position behind them.

        Changes nothing. Raises `StoreError` for an entry that is damaged or can't be read.
        """
        chosen: list[tuple[int, QueuedItem]] = []
        for entry in self.living(self.position):
            if (self.header.uuid, entry.offset) in taken:
                continue
            item = self.read(entry)
            if not wanted(item):
                continue
            chosen.append((entry.offset, item))
            if len(chosen) == limit:
                return chosen, entry.end
        return chosen, self.end

    def read(self, entry: Entry) -> QueuedItem:
        """Return an entry's item. Raises `StoreError` when its payload or provenance can't be read."""
        try:
            return read_item(entry, self._said, self.header.lane)
        except Undecodable as error:
            raise self._damaged(entry.offset, str(error)) from error

    def retire(self, offset: int) -> bool:
        """Set an entry's marker to RETIRED in memory; False when it was already. Not synced."""
        at = offset + MARKER_AT
        marker: int = struct.unpack_from("<I", self._mapped(offset), at)[0]
        if marker == RETIRED:
            return False
        self._mapped(offset)[at : at + 4] = RETIRED_BYTES
        self.live -= 1
        self.dirty = True
        return True

    def close(self) -> None:
        """Give back the mapping and the file."""
        if self._markers is not None:
            self._markers.close()
            self._markers = None
        self.file.close()

    def _said(self, number: int) -> Provenance:
        return self._provenance.find(number, self.file, self.header)

    def _mapped(self, offset: int) -> mmap.mmap:
        # Only bytes that are synced are ever mapped: a store into space that isn't there kills the process.
        if not HEADER_SIZE <= offset < self.end:
            raise ValueError(f"no entry at {offset}")
        if self._markers is None or offset + MARKER_AT + 4 > len(self._markers):
            if self._markers is not None:
                self._markers.close()
            self._markers = self.file.disk.map(self.file.fd, self.end)
        return self._markers

    def _damaged(self, offset: int, reason: str) -> StoreError:
        message = f"the entry at {offset} can't be read: {reason}"
        cure = (
            "start the run again: damage is put aside then; if this comes back, move the segment out of"
            " queue/ and its items are queued anew"
        )
        return StoreError(Problem(message, file=str(self.file.path), cure=cure))
