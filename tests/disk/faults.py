"""Faults that a proof has to catch, seeded in the tests' own file layer or over the product from outside.

Each is a bug that some log once had: a sync too few, an order turned round, a check left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fafo_run.log import fs
from fafo_run.log.appender import Draft, OpenSegment
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, SyncFailed
from fafo_run.log.listing import segments
from fafo_run.log.recovery import RecoveryReport
from tests.disk import life
from tests.disk.proof import Bench, Kind
from tests.disk.simulated import SimulatedDisk
from tests.disk.watched import WatchedSimulation

Lie = Callable[[str, Path], bool]


def lying(lies: Lie) -> Kind:
    """Return a kind of disk that says of some syncs that they are done, and does nothing."""

    class Lying(WatchedSimulation):
        def fdatasync(self, fd: int) -> None:
            path = self.path_of(fd)
            if lies("fdatasync", path):
                self.after("fdatasync", path)
            else:
                super().fdatasync(fd)

        def sync_dir(self, path: Path) -> None:
            if lies("sync_dir", path):
                self.after("sync_dir", path)
            else:
                super().sync_dir(path)

    return Lying


RESULTS_NOT_SYNCED = lying(lambda call, path: call == "fdatasync" and path.parent.name == "results")
QUEUE_NOT_SYNCED = lying(lambda call, path: call == "fdatasync" and path.parent.name == "queue")
FOLDERS_NOT_SYNCED = lying(lambda call, path: call == "sync_dir")
NEW_FILES_NOT_SYNCED = lying(lambda call, path: call == "fdatasync" and path.suffix == ".tmp")

LIES = {
    "results aren't synced": RESULTS_NOT_SYNCED,
    "the queue isn't synced": QUEUE_NOT_SYNCED,
    "folders aren't synced": FOLDERS_NOT_SYNCED,
    "new segments aren't synced before their name": NEW_FILES_NOT_SYNCED,
}


def no_checksum() -> AbstractContextManager[Any]:
    """Every entry's checksum holds."""
    return patch("fafo_run.log.format.checksum", lambda *_: 0)


def markers_first() -> AbstractContextManager[Any]:
    """Items are marked as done, durably, before their records are."""

    def hasty(self: Bench, claims: Sequence[Any], outcome: Any = None) -> int:
        self.life.retire(claims)
        self.life.sync_markers()
        return right(self, claims, outcome)

    right = Bench.finish
    return patch.object(Bench, "finish", hasty)


def recovery_without_sync() -> AbstractContextManager[Any]:
    """Recovery serves what it found without making it durable."""

    def hasty(directory: RunDirectory) -> RecoveryReport:
        with patch.object(SimulatedDisk, "fdatasync", lambda disk, fd: None):
            return right(directory)

    right = life.recover
    return patch.object(life, "recover", hasty)


def recovery_rewrites_in_place() -> AbstractContextManager[Any]:
    """Recovery empties each segment and writes it anew, durably: harmless unless the power goes meanwhile."""

    def careless(directory: RunDirectory) -> RecoveryReport:
        disk = directory.disk
        for segment in (*segments(disk, directory.queue), *segments(disk, directory.results)):
            fd = disk.open(segment.path, os.O_RDWR)
            data = disk.pread(fd, 1 << 20, 0)
            disk.truncate(fd, 0)
            disk.pwrite(fd, memoryview(data), 0)
            disk.fdatasync(fd)
            disk.close(fd)
        return right(directory)

    right = life.recover
    return patch.object(life, "recover", careless)


def provenance_with_its_entries() -> AbstractContextManager[Any]:
    """Provenance goes out with one sync together with the first entries that refer to it."""

    def introduce(self: OpenSegment, drafts: Sequence[Draft]) -> None:
        with patch.object(type(self.writer), "sync", lambda _: None):
            right(self, drafts)

    right = OpenSegment.introduce
    return patch.object(OpenSegment, "introduce", introduce)


def sync_tried_again() -> AbstractContextManager[Any]:
    """A refused sync is tried once more, and believed."""

    def stubborn(path: Path, call: Callable[..., None], *args: Any) -> None:
        try:
            right(path, call, *args)
        except SyncFailed:
            right(path, call, *args)

    right = fs.syncing
    return patch.object(fs, "syncing", stubborn)


def short_writes_believed() -> AbstractContextManager[Any]:
    """One pwrite is taken for a whole one."""

    def write_all(disk: Disk, path: Path, fd: int, data: bytes, offset: int = 0) -> None:
        fs.refusing(path, disk.pwrite, fd, memoryview(data), offset)

    return patch.object(fs, "write_all", write_all)


PATCHES = {
    "no checksum": no_checksum,
    "markers before records": markers_first,
    "recovery doesn't sync what it serves": recovery_without_sync,
    "provenance in one sync with its entries": provenance_with_its_entries,
}
"""Faults that a power cut shows."""
