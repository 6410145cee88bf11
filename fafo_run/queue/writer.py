"""Appends to the queue: all that a producer in a process of its own does, and what a run's `Queue` does too.

Each process appends to segments of its own, and the run hands out what stands in all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from fafo_build.errors import StoreError
from fafo_run.item import QueuedItem
from fafo_run.log.appender import IDLE, SEGMENT_BYTES, Appender, OpenSegment, Placed
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import SegmentKind
from fafo_run.log.fs import SyncFailed
from fafo_run.log.payload import ProvenanceCache
from fafo_run.queue.payload import draft


def _nothing(placed: Sequence[Placed]) -> None:
    pass


def _closed(segment: OpenSegment) -> None:
    segment.writer.close()


class QueueWriter:
    """Takes no lock that would keep a run from starting, or another producer from appending. Thread-safe."""

    def __init__(
        self,
        directory: RunDirectory,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        monotonic: Callable[[], float] = time.monotonic,
        followed: bool = True,
        appended: Callable[[Sequence[Placed]], None] = _nothing,
        sealed: Callable[[OpenSegment], None] = _closed,
    ) -> None:
        """Open the queue of a folder that is joined or owned.

        The last three are for a process that hands the items out itself: it isn't followed, is told where
        items went before others can append, and has the files of sealed segments.
        """
        self.lock = threading.RLock()
        """Held while anything is appended or sealed."""
        self.failed: StoreError | None = None
        """Set when a sync was refused: nothing is taken after that."""
        self._appended = appended
        self._sealed = sealed
        self._cache = ProvenanceCache()
        self._appender = Appender(
            directory,
            SegmentKind.QUEUE,
            segment_bytes=segment_bytes,
            idle=idle,
            followed=followed,
            monotonic=monotonic,
        )

    def append(self, items: Sequence[QueuedItem]) -> None:
        """Queue items, durably, with one sync per (model, artifact, lane).

        Raises `DiskFull` or `StoreError`; then none of the items is queued, and `SyncFailed`; then it isn't
        known, and the writer takes nothing any more.
        """
        with self.lock:
            self.seal_due()
            drafts = [draft(item, self._cache) for item in items]
            try:
                placed = self._appender.commit(drafts)
            except SyncFailed as error:
                self.failed = error
                raise
            self._appended(placed)

    def seal_due(self) -> None:
        """Seal what is full or has long been idle. Raises `StoreError`.

        Whoever may not append for a while calls it now and then: a sealed segment can be collected.
        """
        with self.lock:
            self._seal(self._appender.due())

    def close(self, *, clean: bool = True) -> None:
        """Close; `clean` seals what grows. Safe to call twice. Raises `StoreError`."""
        with self.lock:
            try:
                if clean and self.failed is None:
                    self._seal(list(self._appender.open.values()))
            finally:
                for segment in self._appender.open.values():
                    segment.writer.close()
                self._appender.open.clear()

    def _seal(self, segments: Iterable[OpenSegment]) -> None:
        if self.failed is not None:
            raise self.failed
        for segment in segments:
            try:
                self._appender.roll(segment)
            except SyncFailed as error:
                self.failed = error
                raise
            self._sealed(segment)
