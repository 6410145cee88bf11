"""The results of a run, to write: durable records, at most one output per identity, one process at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve

from fafo_build.errors import StoreError
from fafo_run.item import Record
from fafo_run.log.appender import IDLE, SEGMENT_BYTES, Appender, OpenSegment
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import SegmentKind
from fafo_run.log.fs import SyncFailed
from fafo_run.log.payload import ProvenanceCache
from fafo_run.log.reader import seal_of
from fafo_run.results.catalog import Catalog
from fafo_run.results.compact import Compaction, Cut, Unwanted, apply, report
from fafo_run.results.environment import MAP_SIZE, UnusableIndexError
from fafo_run.results.hint import write_hint
from fafo_run.results.index import BATCH, Index, build, changed, remove
from fafo_run.results.loading import Loader, opened
from fafo_run.results.payload import draft
from fafo_run.results.place import Place, rank_of
from fafo_run.results.reader import ResultsReader
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table, Tail
from fafo_run.results.trust import is_trusted, sizes, unmerged


class Results(ResultsReader):
    """Open it after recovery, once per run. Thread-safe.

    Appends follow each other under a lock of their own, so that a look-up doesn't wait for the disk.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        map_size: int = MAP_SIZE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the results of a run whose lock is held; what the index lacks is read and put in.

        Raises `StoreError`.
        """
        if directory.lock is None:
            raise ValueError("the results need the store's lock")
        self._append = threading.RLock()
        self._failed: StoreError | None = None
        self._pid = os.getpid()
        self._cache = ProvenanceCache()
        self._map_size = map_size
        self.findings: tuple[str, ...] = ()
        """One line for people per segment that isn't there as the index had it: lost, and done again."""
        self._appender = Appender(
            directory,
            SegmentKind.RESULTS,
            segment_bytes=segment_bytes,
            idle=idle,
            monotonic=monotonic,
        )
        super().__init__(directory)
        self._first = directory.next_sequence(directory.results)
        """The number of the first segment that is written to from here."""

    def _load(self) -> Catalog:
        index = self._open_index()
        if index is None:
            return self._load_unindexed()
        try:
            catalog = Catalog(self._files, index)
            # An older reader may still hold places of a segment that is gone.
            self._appender.skip(merged.sequence for merged in catalog.merged.values())
            self.findings = tuple(f"results/{line}" for line in changed(catalog.merged, sizes(self._files)))
            self._put_in(catalog, index, Loader(self._directory.disk, self._files, owner=True))
        except UnusableIndexError:
            index.close()
            return self._load_unindexed()
        return catalog

    def _open_index(self) -> Index | None:
        directory = self._directory
        if not is_trusted(directory):
            return None
        try:
            return Index.open(directory.index, directory.store, write=True, map_size=self._map_size)
        except UnusableIndexError:
            return None

    def _load_unindexed(self, doubted: Collection[int] = frozenset()) -> Catalog:
        """Build the index anew from the segments, and from the hints of those that aren't doubted."""
        self._check()
        loader = Loader(self._directory.disk, self._files, owner=True, doubted=doubted)
        growing = self._growing()
        tables: dict[bytes, Table] = {}
        for sequence in self._files.list():
            found = loader.load(sequence) if sequence not in growing else None
            if isinstance(found, Table):
                tables[found.uuid] = found
        path, store = self._directory.index, self._directory.store
        build(path, store, list(tables.values()), self._sum_of, map_size=self._map_size)
        index = Index.open(path, store, write=True, map_size=self._map_size)
        catalog = Catalog(self._files, index)
        self._put_in(catalog, index, loader)
        return catalog

    def _put_in(self, catalog: Catalog, index: Index, loader: Loader) -> None:
        """Put what is sealed into the index, many segments at once, and keep the rest in memory."""
        growing = self._growing()
        tables: dict[bytes, Table] = {}
        tails: list[Tail] = []
        for sequence in unmerged(self._files, catalog.merged):
            found = loader.load(sequence, sealed=sequence not in growing)
            if isinstance(found, Tail):
                tails.append(found)
            elif found is not None:
                tables.setdefault(found.uuid, found)
            if sum(table.count for table in tables.values()) >= BATCH:
                index.merge(list(tables.values()), self._sum_of)
                tables = {}
        if tables:
            index.merge(list(tables.values()), self._sum_of)
        catalog.merged = index.merged()
        for tail in tails:
            catalog.take_in(tail)
        self._index = index

    def _growing(self) -> set[int]:
        return {segment.writer.header.sequence for segment in self._appender.open.values()}

    def append(self, records: Sequence[Record]) -> int:
        """Do as `take` does, and return how many records were dropped."""
        return len(records) - len(self.take(records))

    def take(self, records: Sequence[Record]) -> list[Record]:
        """Record what came back, durably, and return the records that were taken.

        An output takes the place of a failure, and so does a failure of a later retry; the earlier one stays
        as history. Anything else of an identity that has a record is dropped.
        Raises `DiskFull` or `StoreError`; then none of the records is there, and `SyncFailed`; then it isn't
        known, and the results take nothing any more.
        """
        with self._append:
            self._check()
            self._roll_due()
            places = self.places([record.identity for record in records])
            accepted = _accept(records, places)
            try:
                placed = self._appender.commit([draft(record, self._cache) for record, _ in accepted])
            except SyncFailed as error:
                self._failed = error
                raise
            with self._state:
                for segment, which, offsets in placed:
                    taken = [accepted[index] for index in which]
                    noted = [
                        (record, offset, rank) for (record, rank), offset in zip(taken, offsets, strict=True)
                    ]
                    header = segment.writer.header
                    self._catalog.note(header.uuid, header.sequence, noted, places)
            return [record for record, _ in accepted]

    def is_new(self, identity: bytes) -> bool:
        """Return whether the record of an identity that counts was taken since these results were opened."""
        place = self._place(identity)
        return place is not None and place.sequence >= self._first

    def reindex(self) -> None:
        """Throw index and hints away and build them from the segments. Raises `StoreError`."""
        with self._append:
            self._distrust(self._files.list())

    def compact(self, unwanted: Unwanted) -> Compaction:
        """Rewrite the segments without what is unwanted. Raises `StoreError`; what was done by then holds."""
        with self._append:
            self._check()
            self.seal()
            planned = self._planned(unwanted)
            if not any(isinstance(cut, Cut) for cut in planned):
                return report(self._files, planned)
            # The index knows the segments as they were: without it, a crash now is like none.
            self._catalog.index.close()
            remove(self._directory.disk, self._directory.index)
            try:
                with self._state:
                    compaction = report(self._files, planned)
                    apply(self._directory.disk, self._files, planned)
                    sizes_now = self._files.headers().values()
            finally:
                self._files.close()
                with self._state:
                    self._catalog = self._load_unindexed()
            return evolve(compaction, bytes_after=sum(size for _, size in sizes_now))

    def seal_idle(self) -> None:
        """Seal what has long been idle and put it into the index. Raises `StoreError`."""
        with self._append:
            self._check()
            self._roll_due()

    def seal(self) -> None:
        """Seal what grows and put it into the index. Raises `StoreError`."""
        with self._append:
            self._check()
            for segment in list(self._appender.open.values()):
                self._roll(segment)

    def close(self, *, clean: bool = False) -> None:
        """Close; `clean` seals first, so that the next start has nothing to do. Safe to call twice."""
        with self._append:
            try:
                if clean and self._failed is None:
                    self.seal()
            finally:
                for segment in self._appender.open.values():
                    segment.writer.close()
                self._appender.open.clear()
                super().close()

    def _renew(self) -> None:
        # Nobody compacts but the owner: a segment that is another one was put there by hand.
        self._distrust()

    def _distrust(self, doubted: Collection[int] = frozenset()) -> None:
        with self._append:
            super()._distrust(doubted)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._pid != os.getpid():
            # The parent goes on: two that write one segment, each at its own offset, would ruin it.
            raise RuntimeError("results that were opened before a fork take nothing in the child")

    def _roll_due(self) -> None:
        for segment in self._appender.due():
            self._roll(segment)

    def _roll(self, segment: OpenSegment) -> None:
        try:
            self._appender.roll(segment)
            segment.writer.close()
            self._put_sealed(segment.writer.header.sequence)
        except SyncFailed as error:
            self._failed = error
            raise

    def _put_sealed(self, sequence: int) -> None:
        """Move a segment from memory into the index, unless it isn't sealed: then it may change."""
        tail = self._catalog.tail(sequence)
        with opened(self._files, sequence) as segment:
            seal = seal_of(segment.file, segment.header) if segment is not None else None
            if segment is None or seal is None or tail is None:
                return
            table = tail.table(segment.file.size())
            write_hint(self._directory.disk, segment, seal, table)
        try:
            # Look-ups go on meanwhile, in memory.
            self._index.merge([table], self._sum_of)
            with self._state:
                self._catalog.forget(table)
        except UnusableIndexError:
            self._distrust()

    def _sum_of(self, identity: bytes, place: Place) -> Tally:
        with self._state:
            return self._files.sum_of(identity, place)


def _accept(records: Sequence[Record], places: Mapping[bytes, Place]) -> list[tuple[Record, int]]:
    """Return the records, with their ranks, that count more than what is there or stands before them."""
    ranks = {identity: place.rank for identity, place in places.items()}
    accepted: list[tuple[Record, int]] = []
    for record in records:
        rank = rank_of(record)
        if rank > ranks.get(record.identity, -1):
            ranks[record.identity] = rank
            accepted.append((record, rank))
    return accepted
