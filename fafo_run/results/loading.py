"""Reads what a segment holds into a table or a tail: from its hint, or from its entries. Knows no index."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from attrs import frozen

from fafo_run.log.format import Seal
from fafo_run.log.fs import Disk
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import seal_of
from fafo_run.results.files import ResultsFiles, ResultsSegment
from fafo_run.results.hint import read_hint, write_hint
from fafo_run.results.place import rank_of
from fafo_run.results.table import Table, Tail


@frozen
class Loader:
    """How tables are come by."""

    disk: Disk
    files: ResultsFiles
    owner: bool
    """Of the store: hints that are missing, or no good, are written; rows stay on the disk."""
    doubted: Collection[int] = frozenset()
    """Segments, by sequence, whose hints aren't to be used."""

    def load(self, sequence: int, *, sealed: bool = True) -> Table | Tail | None:
        """Return a segment's table, its tail when it isn't `sealed`, None when it isn't there any more.

        Raises `StoreError`.
        """
        with opened(self.files, sequence) as segment:
            if segment is None:
                return None
            seal = seal_of(segment.file, segment.header) if sealed else None
            if seal is None:
                return read_tail(segment)
            return self._table(segment, seal)

    def _table(self, segment: ResultsSegment, seal: Seal) -> Table:
        if segment.sequence not in self.doubted:
            table = read_hint(self.disk, segment, seal, keep=not self.owner)
            if table is not None:
                return table
        table = read_tail(segment).table(segment.file.size())
        if self.owner:
            write_hint(self.disk, segment, seal, table)
            return read_hint(self.disk, segment, seal, keep=False) or table
        return table


def read_tail(segment: ResultsSegment) -> Tail:
    """Return all records of a segment as they stand, from its entries. Raises `StoreError`."""
    tail = Tail(segment.header.uuid, segment.sequence)
    for entry in segment.entries():
        try:
            record = segment.record(entry)
        except Undecodable:
            tail.tally.undecodable += 1
        else:
            tail.extend([(record, entry.offset, rank_of(record))])
    return tail


@contextmanager
def opened(files: ResultsFiles, sequence: int) -> Iterator[ResultsSegment | None]:
    """Open a segment for a long read beside others; None when it isn't there or has no readable header."""
    segment = files.fresh(sequence)
    try:
        yield segment
    finally:
        if segment is not None:
            segment.file.close()
