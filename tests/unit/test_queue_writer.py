"""Producers in other processes: they append beside a run, each to segments of its own."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Kind
from fafo_run.log.fs import Disk, DiskFull, SyncFailed
from fafo_run.log.locking import StoreBusy, folder_lock
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.queue.reader import QueueReader
from fafo_run.queue.writer import QueueWriter
from tests.log_nouns import item, look, name_of, provenance

OTHER = provenance("explain")

PRODUCER = """
import sys
from pathlib import Path
from fafo_run.log.directory import RunDirectory
from fafo_run.queue.writer import QueueWriter
from tests.log_nouns import item

path, first, count, batch, segment_bytes, mode = Path(sys.argv[1]), *map(int, sys.argv[2:6]), sys.argv[6]
writer = QueueWriter(RunDirectory.join(path), segment_bytes=segment_bytes)
for start in range(first, first + count, batch):
    writer.append([item(number) for number in range(start, start + batch)])
    print(start + batch, flush=True)
if mode == "close":
    writer.close()
elif mode == "hold":
    sys.stdin.read()
"""


def produce(
    path: Path, first: int, count: int, batch: int, *, segment_bytes: int = 1 << 20, mode: str = "close"
) -> "subprocess.Popen[str]":
    arguments = [str(number) for number in (path, first, count, batch, segment_bytes, mode)]
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def queue(path):
    with RunDirectory.own(path) as directory:
        queue = Queue(directory)
        yield queue
        queue.close(clean=False)


def joined(path: Path, disk: Disk | None = None, **settings: float) -> QueueWriter:
    return QueueWriter(RunDirectory.join(path, disk), **settings)


def numbers(claims) -> list[int]:
    return [int(claim.item.key.strip("ké")) for claim in claims]


def drained(queue: Queue, total: int) -> list[int]:
    """Claim and retire until `total` items came, looking for new ones as a run does."""
    found: list[int] = []
    until = time.monotonic() + 60
    while len(found) < total and time.monotonic() < until:
        queue.refresh()
        while claims := queue.claim(100):
            found += numbers(claims)
            queue.retire(claims)
    return found


def test_joining_makes_a_store_that_a_run_takes_as_its_own(path):
    joined = RunDirectory.join(path)
    assert joined.lock is None and RunDirectory.look(path).store == joined.store
    with RunDirectory.own(path) as owner:
        assert owner.store == joined.store
        assert RunDirectory.join(path).store == joined.store, "beside the run"


def test_all_who_join_at_once_agree_on_one_store(path):
    stores: list[str] = []
    start = threading.Barrier(8)

    def join():
        start.wait()
        stores.append(RunDirectory.join(path).store)

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stores) == 8 and len(set(stores)) == 1


def test_whoever_holds_the_folder_for_ever_is_named(path, monkeypatch):
    directory = RunDirectory.join(path)
    monkeypatch.setattr("fafo_run.log.locking._FOLDER_WAIT", 0.0)
    with (
        folder_lock(directory.disk, directory.queue),
        pytest.raises(StoreBusy, match="held the folder"),
        folder_lock(directory.disk, directory.queue),
    ):
        pass


def test_a_run_finds_what_was_submitted_before_it_began(path):
    writer = joined(path)
    writer.append([item(1), item(2, OTHER)])
    writer.close()
    writer.close()
    with RunDirectory.own(path) as directory:
        recover(directory)
        queue = Queue(directory)
        assert queue.depth() == 2 and numbers(queue.claim(9)) == [1]
        queue.close(clean=True)


def test_a_run_follows_what_is_appended_beside_it(queue, path):
    writer = joined(path)
    assert queue.refresh() == 0
    writer.append([item(1), item(2)])
    assert queue.claim(9) == [] and queue.depth() == 0, "not looked yet"
    assert queue.refresh() == 2 and queue.depth() == 2
    first = queue.claim(9)
    assert numbers(first) == [1, 2]
    queue.retire(first)
    writer.append([item(3)])
    writer.append([item(4, OTHER)])
    assert queue.collect() == 0, "it still grows"
    assert queue.refresh() == 2
    claims = queue.claim(9) + queue.claim(9)
    assert numbers(claims) == [3, 4]
    queue.retire(claims)
    writer.close()
    assert queue.refresh() == 0 and queue.depth() == 0
    assert queue.collect() == 2, "sealed by its writer, and everything in it is done"
    assert list((path / "queue").iterdir()) == []
    assert queue.findings == ()


def test_own_and_foreign_segments_never_share_a_number(queue, path):
    writers = [joined(path) for _ in range(3)]
    for at, writer in enumerate(writers):
        writer.append([item(at)])
        queue.append([item(10 + at, lane=at)])
    assert len(list((path / "queue").glob("*.seg"))) == 6
    assert queue.refresh() == 3
    assert sorted(numbers(queue.claim(99))) == [0, 1, 2]
    for writer in writers:
        writer.close()


def test_what_isnt_said_to_be_durable_is_never_handed_out(path, queue):
    class Cautious(Disk):
        seen: list[int]

        def fdatasync(self, fd):
            super().fdatasync(fd)
            # The bytes of the batch are there; nobody said yet that they are durable.
            self.seen.append(queue.refresh() + len(queue.claim(9)))

    disk = Cautious()
    disk.seen = []
    writer = joined(path, disk)
    writer.append([item(1)])
    writer.append([item(2)])
    assert disk.seen == [0, 0, 0, 1 + 1], "header, provenance, two batches: only the first is known then"
    assert queue.refresh() == 1 and numbers(queue.claim(9)) == [2]
    writer.close()


class Small(Disk):
    room = 1 << 40

    def pwrite(self, fd, data, offset):
        if offset + len(data) <= self.room:
            return super().pwrite(fd, data, offset)
        if offset >= self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data[: self.room - offset], offset)


def test_a_producer_that_takes_a_batch_back_does_a_follower_no_harm(path, queue):
    disk = Small()
    writer = joined(path, disk)
    writer.append([item(1), item(2)])
    assert queue.refresh() == 2
    claims = queue.claim(1)
    (file,) = (path / "queue").glob("*.seg")
    disk.room = file.stat().st_size + 100
    with pytest.raises(DiskFull):
        writer.append([item(number) for number in range(3, 60)])
    assert queue.refresh() == 0
    queue.retire(claims)
    disk.room = 1 << 40
    writer.append([item(60)])
    assert queue.refresh() == 1
    assert numbers(queue.claim(9)) == [2, 60]
    writer.close()
    assert queue.refresh() == 0 and queue.findings == ()
    _, found, entries = look(file)
    assert found.gaps == () and found.damage == () and found.seal is not None
    assert [entry.kind for entry in entries if entry.kind == Kind.COMMIT] == [Kind.COMMIT] * 2


def test_without_room_for_the_word_that_a_batch_is_durable_the_next_batch_says_it(path, queue):
    disk = Small()
    writer = joined(path, disk)
    writer.append([item(1)])
    (file,) = (path / "queue").glob("*.seg")
    size = file.stat().st_size
    writer.append([item(2)])
    grown = file.stat().st_size - size
    disk.room = file.stat().st_size + grown - 7
    writer.append([item(3)])
    assert file.stat().st_size == size + 2 * grown - 48, "the batch without its COMMIT"
    assert queue.refresh() == 2
    disk.room = 1 << 40
    writer.append([item(4)])
    assert queue.refresh() == 2 and numbers(queue.claim(9)) == [1, 2, 3, 4]
    writer.close()
    assert look(file)[1].damage == () and look(file)[1].seal is not None


def test_a_refused_sync_ends_a_writer(path):
    class Failing(Disk):
        fails = False

        def fdatasync(self, fd):
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(fd)

    disk = Failing()
    writer = joined(path, disk)
    writer.append([item(1)])
    disk.fails = True
    with pytest.raises(SyncFailed):
        writer.append([item(2)])
    disk.fails = False
    with pytest.raises(SyncFailed):
        writer.append([item(3)])
    writer.close()
    (file,) = (path / "queue").glob("*.seg")
    assert look(file)[1].seal is None, "nothing is sealed that nobody knows"


def test_an_idle_writer_seals_so_that_what_is_done_can_go(path, queue):
    now = [0.0]
    writer = joined(path, idle=30.0, monotonic=lambda: now[0])
    writer.append([item(1)])
    queue.refresh()
    queue.retire(queue.claim(1))
    now[0] = 30.0
    writer.seal_due()
    queue.refresh()
    assert queue.collect() == 1
    writer.append([item(2)])
    assert queue.refresh() == 1 and numbers(queue.claim(9)) == [2]
    writer.close()


def test_a_segment_whose_writer_is_gone_is_mended_and_sealed(path, queue):
    class Dying(Disk):
        """Its process is killed within the second batch: some of it was written."""

        left = 1 << 40

        def pwrite(self, fd, data, offset):
            if len(data) > self.left:
                super().pwrite(fd, data[: self.left], offset)
                raise KeyboardInterrupt
            return super().pwrite(fd, data, offset)

        def truncate(self, fd, size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Dying()
    writer = joined(path, disk)
    writer.append([item(1)])
    (file,) = (path / "queue").glob("*.seg")
    whole = file.stat().st_size
    disk.left = 4 * 112 + 9
    with pytest.raises(KeyboardInterrupt):
        writer.append([item(number) for number in range(2, 9)])
    assert file.stat().st_size == whole + disk.left
    assert queue.refresh() == 1 and queue.findings == (), "its writer holds it"
    writer.close(clean=False)
    reading = QueueReader.open(path).items()
    assert next(reading) == item(1)
    assert queue.refresh() == 0 and queue.findings == (), "a reader holds it"
    reading.close()
    assert queue.refresh() == 4
    assert "interrupted write" in "".join(queue.findings)
    assert numbers(queue.claim(9)) == [1, 2, 3, 4, 5], "whole entries are kept, though nobody knew of them"
    assert look(file)[1].seal is not None and look(file)[1].damage == ()
    assert QueueReader.open(path).depth() == 5


def test_recovery_beside_a_writer_leaves_its_segment_alone(path):
    writer = joined(path)
    writer.append([item(1)])
    (file,) = (path / "queue").glob("*.seg")
    before = file.read_bytes()
    with RunDirectory.own(path) as directory:
        queue = Queue(directory)
        assert file.read_bytes() == before
        assert queue.depth() == 1 and numbers(queue.claim(9)) == [1]
        writer.append([item(2)])
        assert queue.refresh() == 1
        writer.close()
        queue.close(clean=True)
    assert look(file)[1].damage == () and look(file)[1].seal is not None


def test_damage_in_a_growing_segment_is_passed_when_its_writer_is_gone(path, queue):
    writer = joined(path)
    for number in range(1, 4):
        writer.append([item(number)])
    (file,) = (path / "queue").glob("*.seg")
    entries = [entry for entry in look(file)[2] if entry.kind == Kind.ITEM]
    with file.open("r+b") as handle:
        handle.seek(entries[1].offset + 50)
        handle.write(b"\xff\xff\xff")
    assert queue.refresh() == 1
    writer.close()
    assert queue.refresh() == 1
    assert numbers(queue.claim(9)) == [1, 3]
    assert any("damaged" in line for line in queue.findings)
    assert list((path / "quarantine").glob("*.bin"))


def test_a_header_of_another_version_says_so(path):
    joined(path).append([item(1)])
    (path / "FORMAT").write_text('{"format": 99, "store": "x", "byte_order": "little"}')
    with pytest.raises(StoreError, match="format 99"):
        RunDirectory.join(path)


def test_producers_in_several_processes_and_a_run_that_drains(path):
    total, batch = 600, 20
    producers = [produce(path, at * total, total, batch, segment_bytes=20_000) for at in range(2)]
    try:
        with RunDirectory.own(path) as directory:
            recover(directory)
            queue = Queue(directory)
            found = drained(queue, 2 * total)
            assert sorted(found) == list(range(2 * total)), "each once"
            for producer in producers:
                assert producer.wait(60) == 0
            queue.refresh()
            queue.close(clean=True)
    finally:
        for producer in producers:
            producer.kill()
            producer.communicate()
    assert list((path / "queue").iterdir()) == []


def test_a_producer_that_is_killed_loses_nothing_it_was_acknowledged(path):
    producer = produce(path, 0, 1_000_000, 7)
    try:
        acknowledged = 0
        assert producer.stdout is not None
        with RunDirectory.own(path) as directory:
            queue = Queue(directory)
            found: list[int] = []
            while acknowledged < 700:
                acknowledged = int(producer.stdout.readline())
                queue.refresh()
                claims = queue.claim(50)
                found += numbers(claims)
                queue.retire(claims)
            producer.send_signal(signal.SIGKILL)
            producer.wait(60)
            acknowledged = max([acknowledged, *map(int, producer.stdout.read().split("\n")[:-1])])
            queue.refresh()
            found += drained(queue, queue.depth())
            assert found == list(range(len(found))) and len(found) >= acknowledged
            assert queue.collect() == 1
            queue.close(clean=True)
    finally:
        producer.kill()
        producer.communicate()


def test_a_run_that_is_killed_hands_on_what_a_producer_goes_on_to_append(path):
    producer = produce(path, 0, 40, 10, mode="hold")
    try:
        assert producer.stdout is not None
        while producer.stdout.readline() != "40\n":
            pass
        for expected in (40, 30):
            with RunDirectory.own(path) as directory:
                queue = Queue(directory)
                assert queue.depth() == expected
                queue.retire(queue.claim(10))
                queue.close(clean=False)
        producer.communicate("")
        with RunDirectory.own(path) as directory:
            recover(directory)
            queue = Queue(directory)
            assert numbers(queue.claim(99)) == list(range(20, 40))
            queue.close(clean=True)
    finally:
        producer.kill()
        producer.communicate()


def test_identities_and_depth_of_a_reader_beside_producers(path, queue):
    writer = joined(path)
    writer.append([item(1)])
    assert QueueReader.open(path).identities() == {name_of(1)}
    writer.close()
