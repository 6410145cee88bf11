"""One segment of the queue as a run has it: how far it was handed out, how many entries live, its markers."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from attrs import define, field

from fafo_build.errors import Problem, StoreError
from fafo_run.item import Provenance, QueuedItem
from fafo_run.log.appender import OpenSegment
from fafo_run.log.batch import Array, Entry, Run
from fafo_run.log.format import HEADER_SIZE, MARKER_AT, RETIRED, RETIRED_BYTES, Header, Kind
from fafo_run.log.fs import File
from fafo_run.log.payload import Undecodable
from fafo_run.log.provenance import ProvenanceTable
from fafo_run.log.reader import Gap, Scan, runs
from fafo_run.log.route import Route
from fafo_run.queue.payload import provenance_numbers, read_item
from fafo_run.queue.selection import EVERYTHING, Selection

_PIECE = 256 << 10
"""Bytes read ahead at once for claims, which may take few entries."""


class Waiting(NamedTuple):
    """An item that was read, and where it stands."""

    offset: int
    item: QueuedItem


@define(eq=False)
class Part:
    """A segment's state in memory; all of it but the file is derived. Not thread-safe."""

    file: File
    header: Header
    end: int
    """Where the durable entries end; nothing beyond is handed out or mapped."""
    live: int = 0
    """Items that aren't RETIRED, claimed ones included."""
    gaps: frozenset[int] = frozenset()
    """Offsets of damage that recovery has already put aside."""
    aside: int = 0
    """Of the live items, how many nobody wants in this run."""
    segment: OpenSegment | None = None
    """Set while this process appends to the segment."""
    followed: bool = False
    """True while another process appends to the segment, as far as is known."""
    dirty: bool = False
    """Markers were set and not synced."""
    _position: int = HEADER_SIZE
    """Everything before it was read: handed out, passed over, or ahead."""
    _ahead: list[Waiting] = field(factory=list)
    """Read and not handed out yet."""
    _markers: mmap.mmap | None = None
    _provenance: ProvenanceTable = field(factory=ProvenanceTable)

    @classmethod
    def of(cls, file: File, found: Scan) -> Part:
        """Return a segment that is already there, of which `found` says what is in it."""
        return cls(file, found.header, found.end, found.live, frozenset(gap.offset for gap in found.gaps))

    @property
    def uuid(self) -> bytes:
        """Of the segment."""
        return self.header.uuid

    @property
    def route(self) -> Route:
        """What all its entries share."""
        return self.header.route

    @property
    def growing(self) -> bool:
        """True while entries may still be appended."""
        return self.followed or (self.segment is not None and self.segment.writer.usable)

    @property
    def unread(self) -> bool:
        """False when everything was handed out, retired or passed over."""
        return bool(self._ahead) or self._position < self.end

    def follow(self, *, mended: bool = False) -> tuple[int, int]:
        """Return how many items another process has durably appended since, and where they end.

        Once it is `mended` all that stands there is durable, and the gaps are known.
        """
        items = taken = 0
        end = self.end
        for found in runs(self.file, self.header, self.end, piece=_PIECE):
            if isinstance(found, Gap):
                if not mended:
                    # Maybe just being written.
                    break
                self.gaps |= {found.offset}
                continue
            kinds, waiting = found.kinds, _waiting(found)
            said = np.flatnonzero((kinds == Kind.COMMIT) | (kinds == Kind.SEAL))
            if mended:
                end, taken = found.end, taken + int(np.count_nonzero(waiting))
            elif len(said):
                last = int(said[-1])
                taken += items + int(np.count_nonzero(waiting[:last]))
                items = int(np.count_nonzero(waiting[last:]))
                end = found.end if last == len(found) - 1 else int(found.offsets[last + 1])
            else:
                items += int(np.count_nonzero(waiting))
            self.followed = self.followed and not (kinds == Kind.SEAL).any()
        return taken, end

    def living(self, start: int = HEADER_SIZE, *, trusted: bool = False) -> Iterator[tuple[Run, Array]]:
        """Yield entries, many at once, and which of them are items that aren't RETIRED.

        `trusted` leaves out the checksums, for those who only count or name what waits: recovery has looked
        at them, and whoever hands an item out looks again. Raises `StoreError` at damage that wasn't there
        when the segment was opened.
        """
        # What is damaged may look whole but for its checksum.
        trusted = trusted and not self.gaps
        for found in runs(self.file, self.header, start, self.end, trusted=trusted):
            if isinstance(found, Run):
                self._learn(found)
                yield found, _waiting(found)
            else:
                self._pass(found)

    def names(self, selection: Selection = EVERYTHING) -> Iterator[bytes]:
        """Yield the identities of the items that aren't RETIRED and belong to a selection."""
        for run, waiting in self.living(trusted=True):
            names = run.names(self._shared(run, waiting, selection))
            yield from names if selection.chosen is None else filter(selection.chosen, names)

    def count(self, selection: Selection, start: int = HEADER_SIZE) -> int:
        """Return how many items from `start` on aren't RETIRED and belong to a selection."""
        total = 0
        for run, waiting in self.living(start, trusted=True):
            mine = self._shared(run, waiting, selection)
            if selection.chosen is None:
                total += len(mine)
            else:
                total += sum(map(selection.chosen, run.names(mine)))
        return total

    def peek(self, skip: int, limit: int) -> list[Waiting]:
        """Return up to `limit` items that wait, after the first `skip` of them; reads on as far as it has to.

        Changes nothing that can be seen. Raises `StoreError` for an entry that is damaged or can't be read.
        """
        while len(self._ahead) < skip + limit and self._position < self.end:
            self._read_on()
        return self._ahead[skip : skip + limit]

    def keep(self, skip: int, count: int, kept: list[Waiting]) -> None:
        """Of the `count` items after the first `skip`, leave all but `kept` behind."""
        self._ahead[skip : skip + count] = kept

    def advance(self, count: int) -> None:
        """Leave the next items behind: they were handed out."""
        del self._ahead[:count]

    def rewind(self, offset: int) -> None:
        """Look at everything from `offset` on again."""
        if self._ahead:
            offset = min(offset, self._ahead[0].offset)
            self._ahead.clear()
        self._position = min(self._position, offset)

    def read(self, entry: Entry) -> QueuedItem:
        """Return an entry's item. Raises `StoreError` when its payload or provenance can't be read."""
        try:
            return read_item(entry, self._said, self.header.lane)
        except Undecodable as error:
            raise self._damaged(entry.offset, str(error)) from error

    def retire(self, offsets: Sequence[int]) -> int:
        """Mark entries done in memory; return how many weren't already. Not synced."""
        if self._ahead and max(offsets) >= self._ahead[0].offset:
            # Late: it was given back, and may have been read again.
            self.rewind(self._ahead[0].offset)
        return self.mark(offsets)

    def mark(self, offsets: Sequence[int]) -> int:
        """Do as `retire` does to entries that were left behind."""
        markers = self._mapped(max(offsets))
        retired = 0
        for offset in offsets:
            at = offset + MARKER_AT
            if markers[at : at + 4] != RETIRED_BYTES:
                markers[at : at + 4] = RETIRED_BYTES
                retired += 1
        self.live -= retired
        self.dirty = self.dirty or retired > 0
        return retired

    def unmap(self) -> None:
        """Give back the mapping: what was set stays set, and its pages no longer count as this process's."""
        if self._markers is not None:
            self._markers.close()
            self._markers = None

    def close(self) -> None:
        """Give back the mapping and the file."""
        self.unmap()
        self.file.close()

    def _read_on(self) -> None:
        for found in runs(self.file, self.header, self._position, self.end, piece=_PIECE):
            if isinstance(found, Run):
                self._learn(found)
                items = [Waiting(entry.offset, self.read(entry)) for entry in found.entries(_waiting(found))]
                # Nothing changes before all of them were read.
                self._ahead += items
                self._position = found.end
                return
            self._pass(found)
        self._position = self.end

    def _learn(self, run: Run) -> None:
        said = run.kinds == Kind.PROVENANCE
        if said.any():
            for entry in run.entries(said):
                self._provenance.add(entry)

    def _pass(self, gap: Gap) -> None:
        if gap.offset not in self.gaps:
            raise self._damaged(gap.offset, gap.reason)

    def _shared(self, run: Run, waiting: Array, selection: Selection) -> Array:
        """Return the numbers of those entries that are `waiting`, if what they share is wanted."""
        at = np.flatnonzero(waiting)
        if selection is EVERYTHING:
            return at
        numbers = provenance_numbers(run, waiting)
        wanted = [of for of in np.unique(numbers).tolist() if selection.wanted(self._said_here(of))]
        return at[np.isin(numbers, wanted)]

    def _said(self, number: int) -> Provenance:
        return self._provenance.find(number, self.file, self.header)

    def _said_here(self, number: int) -> Provenance:
        try:
            return self._said(number)
        except Undecodable as error:
            raise self._damaged(HEADER_SIZE, str(error)) from error

    def _mapped(self, offset: int) -> mmap.mmap:
        # Only bytes that are synced are ever mapped: a store into space that isn't there kills the process.
        if not HEADER_SIZE <= offset < self.end:
            raise ValueError(f"no entry at {offset}")
        if self._markers is None or offset + MARKER_AT + 4 > len(self._markers):
            self.unmap()
            self._markers = self.file.disk.map(self.file.fd, self.end)
        return self._markers

    def _damaged(self, offset: int, reason: str) -> StoreError:
        message = f"the entry at {offset} can't be read: {reason}"
        cure = (
            "start the run again: damage is put aside then; if this comes back, move the segment out of"
            " queue/ and its items are queued anew"
        )
        return StoreError(Problem(message, file=str(self.file.path), cure=cure))


def _waiting(run: Run) -> Array:
    waiting: Array = (run.kinds == Kind.ITEM) & (run.markers != RETIRED)
    return waiting
