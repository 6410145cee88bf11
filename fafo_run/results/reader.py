"""Reads the results of a run, from another process while it writes, with or without an index."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from fafo_run.item import Provenance, Record
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.locking import is_held
from fafo_run.log.payload import Undecodable
from fafo_run.results.arrays import ArrayIndex
from fafo_run.results.audit import Duplicates, Watcher, audit
from fafo_run.results.catalog import Catalog
from fafo_run.results.compact import Compaction, Cut, Unwanted, plan, report
from fafo_run.results.environment import UnusableIndexError
from fafo_run.results.files import ResultsFiles, ResultsSegment
from fafo_run.results.index import Index, Merged
from fafo_run.results.loading import Loader, opened
from fafo_run.results.place import OUTPUT_RANK, Place
from fafo_run.results.place import places as places_of
from fafo_run.results.summary import Summary
from fafo_run.results.table import Table, Tail
from fafo_run.results.trust import is_trusted, unmerged

_BATCH = 1000


class ResultsReader:
    """What came back. Thread-safe; takes no lock that could stop a writer."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._files = ResultsFiles(directory.disk, directory.results)
        self._state = threading.RLock()
        self._indexed: dict[bytes, Merged] = {}
        self.damaged = False
        """Whether a record was met that can't be read, though it was there once."""
        self._catalog = self._load()

    def _load(self) -> Catalog:
        index = self._open_index()
        while index is not None:
            version = index.version
            try:
                catalog = Catalog(self._files, index)
                # Kept if the index is given up, too: what it knew is how a vanished segment is found.
                self._indexed = dict(catalog.merged)
                self._take_in(catalog, Loader(self._directory.disk, self._files, owner=False))
            except UnusableIndexError:
                index.close()
                break
            # What was merged meanwhile would count twice, or too little.
            if index.version == version:
                return catalog
        return self._load_unindexed()

    def _open_index(self) -> Index | None:
        """Return the store's index if it may be trusted: a damaged one kills whoever reads it."""
        directory = self._directory
        if not is_trusted(directory):
            return None
        try:
            return Index.open(directory.index, directory.store, write=False)
        except UnusableIndexError:
            return None

    def _load_unindexed(self, doubted: Collection[int] = frozenset()) -> Catalog:
        """Take everything from the segments, and from the hints of those that aren't doubted."""
        loader = Loader(self._directory.disk, self._files, owner=False, doubted=doubted)
        found = {found.uuid: found for at in self._files.list() if (found := loader.load(at)) is not None}
        tables = [table for table in found.values() if isinstance(table, Table)]
        catalog = Catalog(self._files, ArrayIndex(tables, self._files.sum_of))
        for tail in found.values():
            if isinstance(tail, Tail):
                catalog.take_in(tail)
        return catalog

    def _take_in(self, catalog: Catalog, loader: Loader) -> None:
        """Read what the index hasn't. Raises `UnusableIndexError` when it isn't of these segments."""
        for sequence in unmerged(self._files, catalog.merged):
            found = loader.load(sequence, sealed=False)
            if isinstance(found, Tail) and found.uuid not in catalog.merged:
                catalog.take_in(found)

    def __contains__(self, identity: object) -> bool:
        """Return whether an identity has a record, an output or a failure."""
        return isinstance(identity, bytes) and self._place(identity) is not None

    def has_output(self, identity: bytes) -> bool:
        """Return whether an identity has an output."""
        place = self._place(identity)
        return place is not None and place.output

    def is_done(self, identity: bytes, retry: int = 0) -> bool:
        """Return whether an item that was put back `retry` times needs no more work.

        It needs none if its identity has an output, or a failure of that retry or a later one.
        """
        place = self._place(identity)
        return place is not None and place.is_done(retry)

    def done(self, asked: Sequence[tuple[bytes, int]]) -> list[bool]:
        """Return what `is_done` says of each identity and `retry`, with one look into the index."""
        places = self.places([identity for identity, _ in asked])
        return [
            (place := places.get(identity)) is not None and place.is_done(retry) for identity, retry in asked
        ]

    @property
    def indexed(self) -> dict[bytes, Merged]:
        """The segments that the index had when it was opened, by uuid; also of one that can't be trusted."""
        return self._indexed

    @property
    def is_indexed(self) -> bool:
        """False when there was no index to trust, and all was read from the segments."""
        return isinstance(self._catalog.index, Index)

    def places(self, identities: list[bytes]) -> dict[bytes, Place]:
        """Return where the records of identities are that count, as the index has them where there is one."""
        try:
            with self._state:
                return self._catalog.find(identities)
        except UnusableIndexError:
            self._distrust()
        with self._state:
            return self._catalog.find(identities)

    def find(self, identity: bytes) -> Record | None:
        """Return the record of an identity that counts; None when it has none.

        An index that points elsewhere is no longer trusted: what it knows is then read from the segments.
        """
        place = self._place(identity)
        return self._record(identity, place) if place is not None else None

    def scan(self) -> Iterator[Record]:
        """Yield every record that can be read, superseded ones too, the oldest segment first."""
        for segment in self._segments():
            for entry in segment.entries():
                record = _decoded(segment, entry)
                if record is not None:
                    yield record

    def effective(self) -> Iterator[Record]:
        """Yield the record of each identity that counts, the oldest segment first."""
        for segment in self._segments():
            self._follow(segment.sequence, segment.header.uuid)
            batch: list[Entry] = []
            for entry in segment.entries():
                batch.append(entry)
                if len(batch) == _BATCH:
                    yield from self._counting(segment, batch)
                    batch = []
            yield from self._counting(segment, batch)

    def failures(self) -> Iterator[Record]:
        """Yield the failures that count, the oldest segment first, without a look at the outputs."""
        loader = Loader(self._directory.disk, self._files, owner=False)
        for sequence in self._files.list():
            found = loader.load(sequence)
            if found is None:
                continue
            self._follow(sequence, found.uuid)
            rows = found.part() if isinstance(found, Table) else found.rows()
            failed = list(places_of(rows[rows["rank"] != OUTPUT_RANK]))
            for start in range(0, len(failed), _BATCH):
                batch = failed[start : start + _BATCH]
                counting = self.places([identity for identity, _ in batch])
                for identity, place in batch:
                    counts = counting.get(identity)
                    # Compaction moves a record within its segment.
                    if counts is not None and (counts.sequence, counts.rank) == (sequence, place.rank):
                        record = self._record(identity, counts)
                        if record is not None:
                            yield record

    def history(self, identity: bytes) -> list[Record]:
        """Return all records of an identity, the one that counts last."""
        if self.find(identity) is None:
            return []
        with self._state:
            found = [self._files.read(identity, place) for place in self._catalog.history(identity)]
        return [record for record in found if record is not None]

    def provenances(self) -> Iterator[Provenance]:
        """Yield what the records of each segment share, by the segments' ends: none is read whole."""
        for segment in self._segments():
            yield from segment.provenances()

    def summary(self) -> Summary:
        """Return counts and token sums over the records that count."""
        with self._state:
            return self._catalog.summary()

    def duplicates(self, watcher: Watcher | None = None) -> Duplicates:
        """Check every entry on disk: identities with two outputs, entries that can't be read, damage.

        `watcher` is shown every record on the way, superseded ones too.

        Damage is also what isn't there: a segment that the index had, or the end of one that was sealed.
        Holds 16 bytes per output.
        """
        with self._state:
            indexed = self._indexed | self._catalog.merged
        return audit(self._files, indexed, self._is_idle, watcher)

    def plan_compaction(self, unwanted: Unwanted) -> Compaction:
        """Return what `Results.compact` would do. Writes nothing."""
        return report(self._files, self._planned(unwanted))

    def _planned(self, unwanted: Unwanted) -> list[Cut | str]:
        with self._state:
            merged = dict(self._catalog.merged)
        return list(plan(self._files, merged, self.places, unwanted))

    def close(self) -> None:
        """Close; safe to call twice."""
        with self._state:
            self._catalog.index.close()
            self._files.close()

    def _is_idle(self) -> bool:
        """Return whether no run works on the store, and the last one stopped cleanly: all is sealed."""
        directory = self._directory
        return not is_held(directory.path / "LOCK") and directory.stopped_cleanly()

    def _place(self, identity: bytes) -> Place | None:
        return self.places([identity]).get(identity)

    def _record(self, identity: bytes, place: Place) -> Record | None:
        """Return the record that counts, where `place` is what was found for it."""
        with self._state:
            record = self._files.read(identity, place)
        if record is None:
            with opened(self._files, place.sequence) as segment:
                followed = self._follow(place.sequence, segment.header.uuid if segment is not None else b"")
            if not followed:
                # Either the segment isn't as it was, or what pointed there was wrong.
                self._distrust({place.sequence})
            again = self._place(identity)
            with self._state:
                record = self._files.read(identity, again) if again is not None else None
            self.damaged = self.damaged or record is None
        return record

    def _follow(self, sequence: int, uuid: bytes) -> bool:
        """Look at everything anew when another segment has this number now: it was compacted."""
        with self._state:
            merged = self._catalog.merged.items()
            compacted = any(of.sequence == sequence and known != uuid for known, of in merged)
            if compacted:
                self._renew()
            return compacted

    def _renew(self) -> None:
        with self._state:
            self._catalog.index.close()
            self._files.close()
            self._catalog = self._load()

    def _distrust(self, doubted: Collection[int] = frozenset()) -> None:
        """Leave the index, and read the segments; those in doubt without their hints."""
        with self._state:
            self._catalog.index.close()
            self._files.close()
            self._catalog = self._load_unindexed(doubted)

    def _counting(self, segment: ResultsSegment, batch: list[Entry]) -> Iterator[Record]:
        places = self.places([entry.identity for entry in batch])
        for entry in batch:
            place = places.get(entry.identity)
            if place is not None and (place.sequence, place.offset) == (segment.sequence, entry.offset):
                record = _decoded(segment, entry)
                if record is not None:
                    yield record

    def _segments(self) -> Iterator[ResultsSegment]:
        for sequence in self._files.list():
            with opened(self._files, sequence) as segment:
                if segment is not None:
                    yield segment


def _decoded(segment: ResultsSegment, entry: Entry) -> Record | None:
    try:
        return segment.record(entry)
    except Undecodable:
        return None


def open_reader(path: Path) -> ResultsReader:
    """Open the results of the run at `path` to read. Raises `StoreError` when no store is there."""
    return ResultsReader(RunDirectory.look(path))
