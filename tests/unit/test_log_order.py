"""The order of writes and syncs, which no kill -9 shows: what is acknowledged, served or gone is synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import SegmentKind
from fafo_run.log.fs import Disk
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, look, record


def name_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()


class TracingDisk(Disk):
    """Writes down every call that changes something, with the file's name."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _note(self, call: str, path: Path | str) -> None:
        self.calls.append(f"{call} {Path(path).parent.name}/{Path(path).name}")

    def pwrite(self, fd, data, offset):
        self._note("write", name_of(fd))
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        self._note("sync", name_of(fd))
        super().fdatasync(fd)

    def truncate(self, fd, size):
        self._note("cut", name_of(fd))
        super().truncate(fd, size)

    def rename(self, old, new):
        self._note("rename", new)
        super().rename(old, new)

    def unlink(self, path):
        self._note("unlink", path)
        super().unlink(path)

    def sync_dir(self, path):
        self._note("sync folder", path)
        super().sync_dir(path)

    def taken(self) -> list[str]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def disk():
    return TracingDisk()


@pytest.fixture
def directory(tmp_path, disk):
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        disk.taken()
        yield directory


NEW = [
    "write {0}/00000001.seg.tmp",
    "sync {0}/00000001.seg.tmp",
    "rename {0}/00000001.seg",
    "sync folder run/{0}",
    "write {0}/00000001.seg",
    "sync {0}/00000001.seg",
    "write {0}/00000001.seg",
    "sync {0}/00000001.seg",
]
"""The file, its provenance, its entries: each is durable before the next one."""


@pytest.mark.parametrize("kind", list(SegmentKind))
def test_durable_before_it_is_acknowledged(directory, disk, kind):
    name = kind.name.lower()
    log = Queue(directory) if kind is SegmentKind.QUEUE else Results(directory)
    noun = item if kind is SegmentKind.QUEUE else record
    log.append([noun(1)])
    assert disk.taken() == [call.format(name) for call in NEW]
    log.append([noun(number) for number in range(2, 1000)])
    assert disk.taken() == [f"write {name}/00000001.seg", f"sync {name}/00000001.seg"], "one write, one sync"
    log.close(clean=False)


def test_one_sync_per_segment_of_a_batch(directory, disk):
    queue = Queue(directory)
    queue.append([item(1, lane=1), item(2, lane=2)])
    disk.taken()
    queue.append([item(3, lane=1), item(4, lane=2), item(5, lane=1)])
    both = ["queue/00000001.seg", "queue/00000002.seg"]
    assert disk.taken() == [f"write {name}" for name in both] + [f"sync {name}" for name in both]
    queue.close(clean=False)


def test_nothing_is_handed_out_before_it_is_durable(tmp_path):
    seen: list[int] = []

    class Peeking(TracingDisk):
        queue: Queue | None = None

        def fdatasync(self, fd):
            if self.queue is not None and "queue" in str(name_of(fd)):
                seen.append(len(self.queue.claim(9)))
            super().fdatasync(fd)

    disk = Peeking()
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        queue = Queue(directory)
        queue.append([item(0)])
        queue.retire(queue.claim(1))
        disk.queue = queue
        queue.append([item(1)])
        disk.queue = None
        assert seen == [0] and len(queue.claim(9)) == 1
        queue.close(clean=False)


def test_markers_are_set_without_a_sync_and_synced_at_once(directory, disk):
    queue = Queue(directory)
    queue.append([item(number) for number in range(9)])
    claims = queue.claim(9)
    disk.taken()
    queue.retire(claims)
    assert disk.taken() == []
    queue.sync_markers()
    queue.sync_markers()
    assert disk.taken() == ["sync queue/00000001.seg"]
    queue.close(clean=False)


def test_collecting_syncs_before_it_removes(directory, disk):
    queue = Queue(directory, segment_bytes=1)
    queue.append([item(1)])
    queue.append([item(2)])
    assert queue.collect() == 0, "both are sealed now"
    queue.retire(queue.claim(1))
    disk.taken()
    assert queue.collect() == 1
    assert disk.taken() == [
        "sync queue/00000001.seg",
        "rename queue/00000001.dead",
        "sync folder run/queue",
        "unlink queue/00000001.dead",
        "sync folder run/queue",
    ]
    queue.close(clean=False)


def test_recovery_syncs_what_it_found_before_it_vouches_for_it(directory, disk):
    queue = Queue(directory)
    queue.append([item(1)])
    queue.close(clean=False)
    file = directory.queue / "00000001.seg"
    with file.open("ab") as handle:
        handle.write(b"torn")
    disk.taken()
    recover(directory)
    name = "queue/00000001.seg"
    calls = disk.taken()
    mine = [call for call in calls if name in call]
    assert mine == [
        f"{call} {name}" for call in ("cut", "sync", "sync", "write", "sync", "write", "sync", "sync")
    ]
    assert calls.index("sync folder run/queue") > max(at for at, call in enumerate(calls) if name in call)
    assert look(file)[1].seal is not None
    recover(directory)
    assert disk.taken()[:3] == [f"sync {name}", "sync folder run/queue", "sync folder run/results"]
