"""Reads the results of a run, from another process while it writes, with or without an index."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from fafo_run.item import Record
from fafo_run.log.directory import RunDirectory
from fafo_run.log.locking import is_held
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import Entry
from fafo_run.results.catalog import Catalog
from fafo_run.results.files import ResultsFiles, ResultsSegment
from fafo_run.results.index import Index, Merged, Place, UnusableIndexError, is_whole, probe
from fafo_run.results.summary import Summary

_BATCH = 1000


@frozen
class Duplicates:
    """What a check of all entries on disk found, without the index."""

    identities: tuple[bytes, ...]
    """Those with more than one output, sorted."""
    outputs: int
    """OUTPUT entries."""
    failures: int
    """FAILURE entries."""
    undecodable: int
    """Entries whose checksum holds and which can't be read all the same."""
    damaged: tuple[str, ...]
    """One line for people per piece of damage."""


class ResultsReader:
    """What came back. Thread-safe; takes no lock that could stop a writer."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._files = ResultsFiles(directory.disk, directory.results)
        self._state = threading.RLock()
        self._indexed: dict[bytes, Merged] = {}
        self._catalog = self._load()

    def _load(self) -> Catalog:
        directory = self._directory
        # A damaged index kills its reader. A run that goes on has looked already; else what a clean stop left
        # must still be as large as it was, or a child process has to try first.
        is_left_whole = directory.stopped_cleanly() and is_whole(directory.index)
        if not (is_held(directory.path / "LOCK") or is_left_whole or probe(directory.index)):
            return self._load_unindexed()
        try:
            index = Index.open(directory.index, directory.store, write=False)
        except UnusableIndexError:
            return self._load_unindexed()
        try:
            catalog = Catalog(self._files, index)
            # Kept if the index is given up, too: what it knew is how a vanished segment is found.
            self._indexed = dict(catalog.merged)
            catalog.load(merge=False)
        except UnusableIndexError:
            index.close()
            return self._load_unindexed()
        return catalog

    def _load_unindexed(self) -> Catalog:
        catalog = Catalog(self._files, None)
        catalog.load(merge=False)
        return catalog

    def __contains__(self, identity: object) -> bool:
        """Return whether an identity has a record, an output or a failure."""
        return isinstance(identity, bytes) and self._place(identity) is not None

    def has_output(self, identity: bytes) -> bool:
        """Return whether an identity has an output."""
        place = self._place(identity)
        return place is not None and place.output

    def find(self, identity: bytes) -> Record | None:
        """Return the record of an identity that counts; None when it has none.

        An index that points elsewhere is no longer trusted: everything is then read from the segments.
        """
        place = self._place(identity)
        if place is None:
            return None
        with self._state:
            record = self._files.read(identity, place)
        if record is None:
            self._distrust()
            place = self._place(identity)
            with self._state:
                record = self._files.read(identity, place) if place is not None else None
        return record

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
            batch: list[Entry] = []
            for entry in segment.entries():
                batch.append(entry)
                if len(batch) == _BATCH:
                    yield from self._counting(segment, batch)
                    batch = []
            yield from self._counting(segment, batch)

    def summary(self) -> Summary:
        """Return counts and token sums over the records that count."""
        with self._state:
            return self._catalog.summary()

    def duplicates(self) -> Duplicates:
        """Check every entry on disk: identities with two outputs, entries that can't be read, damage.

        Damage is also what isn't there: a segment that the index had, or the end of one that was sealed.
        Holds 16 bytes per output.
        """
        from fafo_run.results.audit import audit

        with self._state:
            indexed = self._indexed | self._catalog.merged
        return Duplicates(*audit(self._files, indexed, self._is_idle))

    def close(self) -> None:
        """Close; safe to call twice."""
        with self._state:
            if self._catalog.index is not None:
                self._catalog.index.close()
            self._files.close()

    def _is_idle(self) -> bool:
        """Return whether no run works on the store, and the last one stopped cleanly: all is sealed."""
        directory = self._directory
        return not is_held(directory.path / "LOCK") and directory.stopped_cleanly()

    def _place(self, identity: bytes) -> Place | None:
        return self._places([identity]).get(identity)

    def _places(self, identities: list[bytes]) -> dict[bytes, Place]:
        try:
            with self._state:
                return self._catalog.find(identities)
        except UnusableIndexError:
            self._distrust()
        with self._state:
            return self._catalog.find(identities)

    def _distrust(self) -> None:
        """Read everything from the segments, and no longer from the index."""
        with self._state:
            if self._catalog.index is not None:
                self._catalog.index.close()
            self._catalog = self._load_unindexed()

    def _counting(self, segment: ResultsSegment, batch: list[Entry]) -> Iterator[Record]:
        places = self._places([entry.identity for entry in batch])
        for entry in batch:
            if places.get(entry.identity) == segment.place(entry):
                record = _decoded(segment, entry)
                if record is not None:
                    yield record

    def _segments(self) -> Iterator[ResultsSegment]:
        for sequence in self._files.list():
            segment = self._files.fresh(sequence)
            if segment is not None:
                with _closing(segment):
                    yield segment


@contextmanager
def _closing(segment: ResultsSegment) -> Iterator[None]:
    try:
        yield
    finally:
        segment.file.close()


def _decoded(segment: ResultsSegment, entry: Entry) -> Record | None:
    try:
        return segment.record(entry)
    except Undecodable:
        return None


def open_reader(path: Path) -> ResultsReader:
    """Open the results of the run at `path` to read. Raises `StoreError` when no store is there."""
    return ResultsReader(RunDirectory.look(path))
