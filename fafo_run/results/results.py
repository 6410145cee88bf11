"""The results of a run, to write: durable records, at most one output per identity, one process at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from fafo_build.errors import StoreError
from fafo_run.item import Output, Record
from fafo_run.log.appender import IDLE, SEGMENT_BYTES, Appender, OpenSegment
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import SegmentKind
from fafo_run.log.fs import SyncFailed
from fafo_run.log.payload import ProvenanceCache
from fafo_run.log.recovery import next_sequence
from fafo_run.results.catalog import Catalog
from fafo_run.results.index import MAP_SIZE, Index, Place, UnusableIndexError, changed, is_whole, probe
from fafo_run.results.payload import draft
from fafo_run.results.reader import ResultsReader


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
        self._cache = ProvenanceCache()
        self._map_size = map_size
        self.findings: tuple[str, ...] = ()
        """One line for people per segment that isn't there as the index had it: lost, and done again."""
        self._appender = Appender(
            directory.disk,
            directory.results,
            SegmentKind.RESULTS,
            segment_bytes=segment_bytes,
            idle=idle,
            monotonic=monotonic,
            first_sequence=next_sequence(directory, directory.results),
        )
        super().__init__(directory)

    def _load(self) -> Catalog:
        directory = self._directory
        # A damaged index may kill whoever reads it: after an unclean end, or when it isn't as large as it was
        # left, let a child process try first.
        if (directory.stopped_cleanly() and is_whole(directory.index)) or probe(directory.index):
            try:
                index = Index.open(directory.index, directory.store, write=True, map_size=self._map_size)
            except UnusableIndexError:
                return self._load_unindexed()
            try:
                catalog = Catalog(self._files, index)
                # An older reader may still hold places of a segment that is gone.
                self._appender.skip(merged.sequence for merged in catalog.merged.values())
                self.findings = tuple(
                    f"results/{line}" for line in changed(catalog.merged, self._files.sizes())
                )
                catalog.load(merge=True)
            except UnusableIndexError:
                index.close()
            else:
                return catalog
        return self._load_unindexed()

    def _load_unindexed(self) -> Catalog:
        """Build the index anew from the segments."""
        index = Index.create(self._directory.index, self._directory.store, map_size=self._map_size)
        catalog = Catalog(self._files, index)
        growing = {segment.writer.header.sequence for segment in self._appender.open.values()}
        catalog.load(growing, merge=True)
        return catalog

    def append(self, records: Sequence[Record]) -> int:
        """Record what came back, durably, and return how many records were dropped.

        Dropped is a second output of an identity, and a failure of one that has any record: the first counts.
        An output takes the place of an earlier failure. Raises `DiskFull` or `StoreError`; then none of the
        records is there, and `SyncFailed`; then it isn't known, and the results take nothing any more.
        """
        with self._append:
            self._check()
            self._roll_due()
            places = self._places([record.identity for record in records])
            accepted = self._accept(records, places)
            try:
                placed = self._appender.commit([draft(record, self._cache) for record in accepted])
            except SyncFailed as error:
                self._failed = error
                raise
            with self._state:
                for record, (segment, offset) in zip(accepted, placed, strict=True):
                    header = segment.writer.header
                    place = Place(header.sequence, offset, isinstance(record.outcome, Output))
                    self._catalog.note(header.uuid, record, place, places.get(record.identity))
                    places[record.identity] = place
            return len(records) - len(accepted)

    def reindex(self) -> None:
        """Throw the index away and build it from the segments. Raises `StoreError`."""
        with self._append:
            self._distrust()

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

    def _distrust(self) -> None:
        with self._append:
            super()._distrust()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _accept(self, records: Sequence[Record], places: dict[bytes, Place]) -> list[Record]:
        outputs = {identity: place.output for identity, place in places.items()}
        accepted: list[Record] = []
        for record in records:
            output = isinstance(record.outcome, Output)
            has_output = outputs.get(record.identity)
            if has_output is None or (output and not has_output):
                outputs[record.identity] = output
                accepted.append(record)
        return accepted

    def _roll_due(self) -> None:
        for segment in self._appender.due():
            self._roll(segment)

    def _roll(self, segment: OpenSegment) -> None:
        try:
            self._appender.roll(segment)
        except SyncFailed as error:
            self._failed = error
            raise
        segment.writer.close()
        with self._state:
            self._catalog.merge(segment.writer.header.sequence)
