"""Looks into a queue from another process, while a run works on it, without holding it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fafo_run.item import QueuedItem
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import RETIRED, Kind
from fafo_run.log.fs import refusing
from fafo_run.log.listing import open_segments
from fafo_run.log.reader import read_header, scan, walk
from fafo_run.queue.outcomes import Outcomes
from fafo_run.queue.part import Part


class QueueReader:
    """What waited when it was asked. A collector that wants a segment passes it over while it is read."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    @classmethod
    def open(cls, path: Path) -> QueueReader:
        """Open the queue of the run at `path`. Raises `StoreError` when no store is there."""
        return cls(RunDirectory.look(path))

    def depth(self) -> int:
        """Return how many items wait or are handed out."""
        return sum(part.live for part in self._parts())

    def identities(self) -> set[bytes]:
        """Return the identities of the items that wait or are handed out."""
        return {name for part in self._parts() for name in part.names()}

    def retired(self) -> Iterator[bytes]:
        """Yield the identities of items that are done and whose segment isn't collected yet."""
        return (entry.identity for _, entry in self._retired())

    def unrecorded(self, outcomes: Outcomes) -> Iterator[tuple[bytes, int]]:
        """Yield identity and retry of items that left the queue without an outcome, if their segment stands.

        One that has another entry by now is among them.
        """
        for part, entry in self._retired():
            name = entry.identity
            # Of most there is an output; of the others few have to be read.
            failed = name in outcomes and not outcomes.has_output(name)
            retry = part.read(entry).retry if failed else 0
            if not outcomes.is_done(name, retry):
                yield name, retry

    def items(self) -> Iterator[QueuedItem]:
        """Yield the items that wait or are handed out, segment by segment."""
        for part in self._parts():
            for run, waiting in part.living():
                yield from map(part.read, run.entries(waiting))

    def _retired(self) -> Iterator[tuple[Part, Entry]]:
        for part in self._parts():
            for found in walk(part.file, part.header, end=part.end):
                if isinstance(found, Entry) and found.kind == Kind.ITEM and found.marker == RETIRED:
                    yield part, found

    def _parts(self) -> Iterator[Part]:
        disk = self._directory.disk
        for file in open_segments(disk, self._directory.queue):
            # Holds off a collector. Refused while one has it, and then everything in it is done; or while it
            # is mended, and then what is there is true as far as it goes.
            refusing(file.path, disk.lock, file.fd, exclusive=False)
            header, _ = read_header(file)
            if header is not None:
                yield Part.of(file, scan(file, header))
