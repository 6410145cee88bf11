"""Sees every entry of a store once: can each be read, does the index know it, is an identity there twice?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from fafo_run.item import Provenance
from fafo_run.log.actions import Action, Tell, Why
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import RETIRED, Header, Kind, SegmentKind
from fafo_run.log.fs import File
from fafo_run.log.listing import SegmentFile
from fafo_run.log.payload import Undecodable
from fafo_run.log.provenance import ProvenanceTable
from fafo_run.log.reader import Scan, seal_of
from fafo_run.queue.payload import read_item
from fafo_run.results.audit import repeated
from fafo_run.results.files import RECORDS, ResultsSegment
from fafo_run.results.hint import SUFFIX, read_hint
from fafo_run.results.payload import read_record
from fafo_run.results.place import Place, places, rank_of
from fafo_run.results.reader import ResultsReader
from fafo_run.results.table import Table, Tail
from fafo_run.run.check_derived import Reindex

_BATCH = 1000
_SHOWN = 3
"""Offsets or identities of one kind that are named; the others are counted."""


class Entries:
    """Counts what it is shown, segment by segment.

    Keeps 16 bytes per output, and some 30 per record of one segment.
    """

    def __init__(self, directory: RunDirectory, results: ResultsReader | None) -> None:
        """Without `results` nothing is held against them."""
        self.segments = 0
        self.entries = 0
        self.outputs = bytearray()
        """The identities, 16 bytes each."""
        self.failures = 0
        self.waiting = 0
        """ITEM entries that are LIVE."""
        self.done = 0
        """Of these, whose identity has a record already."""
        self.sizes: dict[bytes, int] = {}
        """Of each segment in bytes, by uuid."""
        self._directory = directory
        self._results = results
        self._lines: list[Action] = []
        self._provenance = ProvenanceTable()
        self._bad: list[int] = []
        self._tail: Tail | None = None

    def visit(self, segment: SegmentFile, file: File, header: Header, entry: Entry) -> None:
        """Take one valid entry."""
        if self._tail is None:
            self._tail = Tail(header.uuid, segment.sequence)
        try:
            self._take(file, header, entry, self._tail)
        except Undecodable:
            self._bad.append(entry.offset)
            self._tail.tally.undecodable += entry.kind in RECORDS

    def walked(self, segment: SegmentFile, file: File, seen: Scan) -> None:
        """Take what a walk found, after its entries."""
        self.segments += 1
        self.entries += seen.count
        self.sizes[seen.header.uuid] = seen.size
        if self._bad:
            line = f"{_some(self._bad, 'entry', 'entries', 'at ')} can't be decoded"
            self._lines.append(Tell(segment.path, Why.UNDECODABLE, line))
        if seen.header.kind is SegmentKind.RESULTS:
            # Not one entry may have been left to visit.
            tail = self._tail or Tail(seen.header.uuid, segment.sequence)
            self._lines += self._compared(segment, file, seen, tail.table(seen.size))
        self._provenance, self._bad, self._tail = ProvenanceTable(), [], None

    def findings(self) -> Iterator[Action]:
        """Yield what is wrong with single entries."""
        yield from self._lines
        twice = [identity.hex() for identity in repeated(self.outputs)]
        if twice:
            line = f"{_some(twice, 'identity', 'identities')} with more than one output; the first counts"
            yield Tell(self._directory.results, Why.DOUBLED, line)

    def _take(self, file: File, header: Header, entry: Entry, tail: Tail) -> None:
        def find(number: int) -> Provenance:
            return self._provenance.find(number, file, header)

        if entry.kind == Kind.PROVENANCE:
            self._provenance.add(entry)
        elif entry.kind == Kind.ITEM and header.kind is SegmentKind.QUEUE:
            item = read_item(entry, find, header.lane)
            if entry.marker != RETIRED:
                self.waiting += 1
                if self._results is not None:
                    self.done += self._results.is_done(entry.identity, item.retry)
        elif entry.kind in RECORDS and header.kind is SegmentKind.RESULTS:
            if entry.kind == Kind.OUTPUT:
                self.outputs += entry.identity
            else:
                self.failures += 1
            record = read_record(entry, find, header.lane)
            tail.extend([(record, entry.offset, rank_of(record))])
        elif entry.kind != Kind.COMMIT:
            raise Undecodable(f"an entry of kind {entry.kind} in a segment of the {header.kind.name.lower()}")

    def _compared(self, segment: SegmentFile, file: File, seen: Scan, table: Table) -> Iterator[Action]:
        """Hold the records of a sealed segment against its hint and against the index."""
        rows = table.part()
        path = segment.path.with_suffix(SUFFIX)
        # Where bytes stand behind the seal, nobody takes the segment for sealed or reads its hint; and one
        # that was sealed since it was walked holds more than was seen.
        seal = seal_of(file, seen.header) if seen.seal is not None else None
        if seal is not None and self._directory.disk.is_file(path):
            mine = ResultsSegment(segment.sequence, file, seen.header, self._provenance)
            hint = read_hint(self._directory.disk, mine, seal, keep=True)
            if hint is None or not np.array_equal(hint.part(), rows):
                yield Reindex(path, Why.HINT_WRONG, "damaged, or of other records than the segment holds")
        results = self._results
        if results is None or not results.is_indexed or table.uuid not in results.indexed:
            return
        if results.indexed[table.uuid].tally.pack() != table.tally.pack():
            line = "the index has other records of it than it holds"
            yield Reindex(segment.path, Why.INDEX_ELSEWHERE, line)
            return
        elsewhere: list[int] = []
        for batch in batched(places(rows), _BATCH):
            known = results.places([identity for identity, _ in batch])
            for identity, place in batch:
                found = known.get(identity)
                # What isn't there must have given way to one that counts as much or more.
                if found is None or found.rank < place.rank:
                    elsewhere.append(place.offset)
        if elsewhere:
            line = f"{_some(elsewhere, 'record', 'records', 'at ')} not where the index has them"
            yield Reindex(segment.path, Why.INDEX_ELSEWHERE, line)


def batched(found: Iterator[tuple[bytes, Place]], size: int) -> Iterator[list[tuple[bytes, Place]]]:
    """Yield lists of at most `size`."""
    while batch := list(islice(found, size)):
        yield batch


def _some(found: Sequence[int] | Sequence[str], one: str, many: str, at: str = "") -> str:
    named = ", ".join(str(of) for of in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{len(found)} {one if len(found) == 1 else many} ({at}{named}{more})"
