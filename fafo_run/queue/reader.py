"""Looks into a queue from another process, while a run works on it, without holding it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fafo_run.item import QueuedItem
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import RETIRED, Kind
from fafo_run.log.fs import File, refusing
from fafo_run.log.listing import segments
from fafo_run.log.reader import Entry, read_header, walk
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
        return sum(1 for _ in self._living())

    def identities(self) -> set[bytes]:
        """Return the identities of the items that wait or are handed out."""
        return {entry.identity for _, entry in self._living()}

    def retired(self) -> Iterator[bytes]:
        """Yield the identities of items that are done and whose segment isn't collected yet."""
        for part in self._parts():
            for found in walk(part.file, part.header, end=part.end):
                if isinstance(found, Entry) and found.kind == Kind.ITEM and found.marker == RETIRED:
                    yield found.identity

    def items(self) -> Iterator[QueuedItem]:
        """Yield the items that wait or are handed out, segment by segment."""
        for part, entry in self._living():
            yield part.read(entry)

    def _living(self) -> Iterator[tuple[Part, Entry]]:
        for part in self._parts():
            for entry in part.living():
                yield part, entry

    def _parts(self) -> Iterator[Part]:
        disk = self._directory.disk
        for segment in segments(disk, self._directory.queue):
            try:
                file = File(disk, segment.path)
            except FileNotFoundError:
                continue  # Collected since the folder was listed: everything in it was done.
            try:
                # Refused only while a collector has it, and then everything in it is done.
                if not refusing(segment.path, disk.lock, file.fd, exclusive=False):
                    continue
                header, _ = read_header(file)
                if header is None:
                    continue
                yield Part.load(file, header)
            finally:
                file.close()
