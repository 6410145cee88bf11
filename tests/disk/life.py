"""One process's life on a store, in the words of a run. Here alone it is known how a store is opened."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fafo_run.item import Claim, QueuedItem, Record
from fafo_run.log.appender import IDLE
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk
from fafo_run.log.recovery import RecoveryReport, recover
from fafo_run.queue.queue import Queue
from fafo_run.queue.reader import QueueReader
from fafo_run.queue.writer import QueueWriter
from fafo_run.results.arrays import ArrayIndex
from fafo_run.results.catalog import Catalog
from fafo_run.results.index import Judge
from fafo_run.results.loading import Loader
from fafo_run.results.results import Results
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table
from tests.disk.simulated import SimulatedDisk
from tests.log_nouns import item, record

RUN = Path("/simulated/main")
"""Where the store is on a simulated disk."""


class MemoryIndex:
    """An index without LMDB, which does its own input and output; what it holds is derived."""

    version = 0

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.array = ArrayIndex([], lambda identity, place: Tally())
        self.find, self.earlier, self.merged = self.array.find, self.array.earlier, self.array.merged

    def merge(self, tables: Sequence[Table], judge: Judge) -> None:
        self.tables += tables
        self.array = ArrayIndex(self.tables, judge)
        self.find, self.earlier, self.merged = self.array.find, self.array.earlier, self.array.merged
        self.version += 1

    def close(self) -> None:
        """Nothing is open."""


class SegmentsOnly(Results):
    """Results with nothing but segments and hints on the disk."""

    def _load(self) -> Catalog:
        return self._load_unindexed()

    def _load_unindexed(self, doubted: Collection[int] = frozenset()) -> Catalog:
        index: Any = MemoryIndex()
        catalog = Catalog(self._files, index)
        self._put_in(catalog, index, Loader(self._directory.disk, self._files, owner=True, doubted=doubted))
        return catalog


class Clock:
    """Seconds of a monotonic clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Life:
    """From the start of a run, with recovery, to its end; `close` isn't called by one that dies.

    `twice` recovers a second time at once, and then `quiet` says whether that changed nothing.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path = RUN,
        *,
        indexed: bool = False,
        segment_bytes: int = 1 << 20,
        lease: float = 60.0,
    ) -> None:
        if path == RUN and not isinstance(disk, SimulatedDisk):
            raise ValueError("a store on a real disk needs a folder of its own")
        self.again = lambda: Life(disk, path, indexed=indexed, segment_bytes=segment_bytes, lease=lease)
        """Starts the next life on this store."""
        self.disk = disk
        self.clock = Clock()
        self.directory = RunDirectory.own(path, disk, force=True)
        try:
            self.report: RecoveryReport = recover(self.directory)
            settings: dict[str, Any] = {"segment_bytes": segment_bytes, "monotonic": self.clock}
            self.queue = Queue(self.directory, lease=lease, **settings)
            self.results = (Results if indexed else SegmentsOnly)(self.directory, **settings)
            self.retired = self.queue.settle(self.results.done)
            self.directory.mark_running()
        except BaseException:
            self.directory.close()
            raise

    def enqueue(self, items: Sequence[QueuedItem]) -> None:
        self.queue.append(items)

    def joined(self) -> QueueWriter:
        """Return a producer of another process, which appends beside this one and may outlive it."""
        return QueueWriter(
            RunDirectory.join(self.directory.path, self.disk, force=True), monotonic=self.clock
        )

    def claim(self, limit: int) -> list[Claim]:
        return self.queue.claim(limit)

    def record(self, records: Sequence[Record]) -> int:
        return self.results.append(records)

    def retire(self, claims: Sequence[Claim]) -> None:
        self.queue.retire(claims)

    def release(self, claims: Sequence[Claim]) -> None:
        self.queue.release(claims)

    def sync_markers(self) -> None:
        self.queue.sync_markers()

    def roll(self) -> None:
        """Seal both logs, as when they have long been idle."""
        self.clock.now += IDLE + 1
        self.results.seal_idle()
        self.queue.append([])

    def collect(self) -> int:
        return self.queue.collect()

    def close(self) -> None:
        """Stop cleanly, as a run does."""
        try:
            self.queue.close(clean=True)
            self.results.close(clean=True)
            self.directory.mark_stopped()
        finally:
            self.directory.close()

    def drop(self) -> None:
        """End as a killed process does, as far as that can be had in a process that goes on."""
        self.queue.close(clean=False)
        self.results.close(clean=False)
        self.directory.close()

    def waiting(self) -> list[QueuedItem]:
        """Read what waits from the segments, item by item."""
        return list(QueueReader(self.directory).items())

    def records(self) -> list[Record]:
        """Read every record from the segments, superseded ones too."""
        return list(self.results.scan())


def key_number(one: QueuedItem | Record) -> int:
    """Return the number that a noun was made of."""
    return int(one.key[1:-1])


def make_item(number: int, lanes: int = 1) -> QueuedItem:
    """Return an item; every second one lies across a border of sectors, wherever it is."""
    return item(number, lane=512 + number % lanes, suffix=tuple(range(230 * (number % 2))))


def make_record(claim: Claim, outcome: Any = None) -> Record:
    of = claim.item
    return record(key_number(of), outcome, lane=of.lane, suffix=of.suffix.ids)


def fresh(disk: SimulatedDisk | None = None) -> SimulatedDisk:
    """Return a disk with an empty store that was stopped cleanly."""
    disk = disk or SimulatedDisk()
    Life(disk).close()
    return disk.untouched()


def repeatable() -> Any:
    """Return a context in which equal traces write equal bytes: no random uuid, no time of day."""
    numbers = itertools.count(1)

    class Uuid:
        def __init__(self) -> None:
            self.bytes = next(numbers).to_bytes(16, "big")
            self.hex = self.bytes.hex()

    return patch("uuid.uuid4", Uuid)


def unread(path: Path) -> bool:
    """Whether nothing decides by what a file holds: its presence is all that counts."""
    return path.name in ("LOCK", "RUNNING", "FORMAT") or path.suffix == ".tmp"
