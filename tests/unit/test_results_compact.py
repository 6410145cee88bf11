"""Compaction: what goes, what stays, and what a kill at any call of the disk leaves."""

import itertools
import random

import pytest
from attrs import evolve

from fafo_run.item import FailureCode
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull
from fafo_run.log.recovery import recover
from fafo_run.results.compact import Compaction, Unwanted
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.disk.life import RUN, SegmentsOnly, fresh, repeatable
from tests.disk.watched import WatchedSimulation
from tests.log_nouns import failure, name_of, output, provenance, record

OLD = provenance("explain", engine="fake")


def again(number, retry=1):
    return evolve(record(number, failure(FailureCode.REJECTED)), retry=retry)


def fill(directory, kind=Results) -> dict[bytes, object]:
    """Write three segments: outputs, failures, failures of both that were superseded, and old work.

    Returns the records that count, by identity.
    """
    results = kind(directory)
    results.append([record(at, failure()) for at in range(4)])
    results.append([record(10), record(11)])
    results.seal()
    results.append([record(0), again(1)])
    results.append([record(20, output(), OLD), record(21, failure(), OLD)])
    results.seal()
    results.append([again(1, 2), record(5, failure()), record(12)])
    results.close(clean=True)
    counting = [
        record(0), again(1, 2), record(2, failure()), record(3, failure()), record(5, failure()),
        record(10), record(11), record(12), record(20, output(), OLD), record(21, failure(), OLD),
    ]  # fmt: skip
    return {one.identity: one for one in counting}


def is_old(of):
    return of.artifact == OLD.artifact


def sizes(directory) -> int:
    return sum(file.stat().st_size for file in directory.results.glob("*.seg"))


def check(directory, counting) -> None:
    """What is there is `counting` and nothing else that counts, to whoever looks."""
    results = Results(directory)
    try:
        for store in (results, open_reader(directory.path)):
            assert {one.identity: one for one in store.effective()} == counting
            assert {name: store.find(name) for name in counting} == counting
            found = store.duplicates()
            assert (found.identities, found.damaged, found.undecodable) == ((), (), 0)
            total = store.summary().total
            assert total.outputs + total.failed == len(counting)
            if store is not results:
                store.close()
        assert results.findings == ()
    finally:
        results.close(clean=True)


@pytest.fixture
def directory(tmp_path):
    with RunDirectory.own(tmp_path / "run") as directory:
        yield directory


def test_superseded_failures_go(directory):
    counting = fill(directory)
    before = sizes(directory)
    results = Results(directory)
    planned = results.plan_compaction(Unwanted())
    assert sizes(directory) == before, "a plan changes nothing"
    done = results.compact(Unwanted())
    assert done == planned
    assert (done.rewritten, done.removed, done.superseded, done.failed, done.obsolete) == (2, 0, 3, 0, 0)
    assert (done.bytes_before, done.bytes_after) == (before, sizes(directory)) and sizes(directory) < before
    assert results.history(name_of(0)) == [record(0)] and results.history(name_of(1)) == [again(1, 2)]
    assert results.summary().total.superseded == 0
    assert results.append([record(1, failure()), record(10), record(30)]) == 2, "it goes on"
    counting[name_of(30)] = record(30)
    results.close(clean=True)
    check(directory, counting)
    results = Results(directory)
    index = (directory.index / "data.mdb").stat().st_ino
    assert results.compact(Unwanted()) == report_of_nothing(sizes(directory))
    assert (directory.index / "data.mdb").stat().st_ino == index, "nothing to do, nothing done"
    results.close(clean=True)


def test_failures_and_old_work_go_where_asked(directory):
    counting = fill(directory)
    results = Results(directory)
    held = frozenset({name_of(2), name_of(20)})
    done = results.compact(Unwanted(failed=True, work=is_old, held=held))
    assert (done.superseded, done.failed, done.obsolete) == (3, 3, 1)
    for number in (1, 3, 5, 21):
        del counting[name_of(number)]
    assert not results.is_done(name_of(3)) and results.is_done(name_of(2)) and results.is_done(name_of(20))
    results.close(clean=True)
    check(directory, counting)


def test_a_segment_that_loses_all_is_removed(directory):
    results = Results(directory)
    results.append([record(1, failure())])
    results.seal()
    results.append([record(1)])
    results.close(clean=True)
    reader = open_reader(directory.path)
    results = Results(directory)
    done = results.compact(Unwanted())
    assert (done.rewritten, done.removed) == (0, 1)
    assert [file.name for file in sorted(directory.results.iterdir())] == ["00000002.hint", "00000002.seg"]
    assert reader.find(name_of(1)) == record(1), "whoever looked before looks again"
    reader.close()
    results.close(clean=True)
    check(directory, {name_of(1): record(1)})


def test_a_reader_from_before_finds_what_was_moved(directory):
    counting = fill(directory)
    reader = open_reader(directory.path)
    results = Results(directory)
    results.compact(Unwanted())
    assert {name: reader.find(name) for name in counting} == counting
    reader.close()
    results.close(clean=True)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_reader_that_is_underway_misses_nothing(directory, indexed):
    counting = fill(directory)
    if not indexed:
        for file in directory.index.iterdir():
            file.unlink()
    readers = [open_reader(directory.path) for _ in range(3)]
    assert {reader.is_indexed for reader in readers} == {indexed}
    underway = [readers[0].effective(), readers[1].failures()]
    found = [[next(each)] for each in underway]
    results = Results(directory)
    results.compact(Unwanted())
    results.close(clean=True)
    for begun, each in zip(found, underway, strict=True):
        begun += each
    assert {one.identity: one for one in found[0]} == counting and len(found[0]) == len(counting)
    failed = {name: one for name, one in counting.items() if one.outcome != output()}
    assert {one.identity: one for one in found[1]} == failed and len(found[1]) == len(failed)
    assert {name: readers[2].find(name) for name in counting} == counting
    for reader in readers:
        reader.close()


def test_a_damaged_segment_is_left_alone(directory):
    fill(directory)
    file = directory.results / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[data.index(b"k3")] ^= 1
    file.write_bytes(data)
    results = Results(directory)
    done = results.compact(Unwanted())
    assert done.damaged == ("00000001.seg",) and done.superseded == 1
    assert file.read_bytes() == bytes(data)
    results.close(clean=True)


def test_a_second_output_stays_to_be_seen(directory):
    results = Results(directory)
    results.append([record(1), record(2, failure())])
    results.append([record(2)])
    results.close(clean=True)
    (file,) = directory.results.glob("*.seg")
    data = file.read_bytes()
    with RunDirectory.own(directory.path.parent / "other") as other:
        results = Results(other)
        results.append([record(1)])
        results.close(clean=True)
        (twin,) = other.results.glob("*.seg")
        twin.rename(directory.results / "00000002.seg")
    results = Results(directory)
    assert results.duplicates().identities == (name_of(1),)
    assert results.compact(Unwanted()).superseded == 1
    assert results.duplicates().identities == (name_of(1),) and file.read_bytes() != data
    results.close(clean=True)


def report_of_nothing(size: int) -> Compaction:
    return Compaction(0, 0, 0, 0, 0, 0, bytes_before=size, bytes_after=size, damaged=())


class Killed(Exception):
    pass


class MortalDisk(Disk):
    """Does a number of calls that change something, and nothing afterwards; the last one by half."""

    def __init__(self) -> None:
        self.left = 1 << 60

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def pwrite(self, fd, data, offset):
        self.left -= 1
        if self.left < 0:
            if self.left == -1:
                super().pwrite(fd, data[: len(data) // 2], offset)
            raise Killed
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        self._live()
        super().fdatasync(fd)

    def rename(self, old, new):
        self._live()
        super().rename(old, new)

    def unlink(self, path):
        self._live()
        super().unlink(path)

    def sync_dir(self, path):
        self._live()
        super().sync_dir(path)


@pytest.mark.parametrize("unwanted", [Unwanted(), Unwanted(work=is_old, failed=True)])
def test_a_kill_at_any_call_loses_and_doubles_nothing(tmp_path, unwanted):
    calls = itertools.count()
    for number in calls:
        path = tmp_path / f"run{number}"
        disk = MortalDisk()
        with RunDirectory.own(path, disk) as directory:
            counting = fill(directory)
            directory.mark_running()
            results = Results(directory)
            disk.left = number
            try:
                results.compact(unwanted)
                survived = True
            except Killed:
                survived = False
            disk.left = 1 << 60
            results.close()
        # What counts and may go is there or not; all else is there.
        may_go = {
            name for name, one in counting.items() if unwanted.failed and one != record(int(one.key[1:-1]))
        }
        reader = open_reader(path)
        found = {one.identity: one for one in reader.effective()}
        assert {name: counting[name] for name in found} == found and counting.keys() - found.keys() <= may_go
        check_ = reader.duplicates()
        assert (check_.identities, check_.damaged) == ((), ()), number
        reader.close()
        with RunDirectory.own(path) as directory:
            report = recover(directory)
            assert not report.damaged
            assert not [file for file in directory.results.iterdir() if file.suffix in {".tmp", ".dead"}]
            check(directory, found)
        if survived:
            assert number > 8
            break


def test_a_full_disk_leaves_all_as_it_was(tmp_path):
    class Full(Disk):
        full = False

        def pwrite(self, fd, data, offset):
            if self.full:
                raise OSError(28, "")
            return super().pwrite(fd, data, offset)

    disk = Full()
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        counting = fill(directory)
        results = Results(directory)
        disk.full = True
        with pytest.raises(DiskFull):
            results.compact(Unwanted())
        assert {name: results.find(name) for name in counting} == counting
        disk.full = False
        assert results.append([record(40)]) == 0
        counting[name_of(40)] = record(40)
        results.close(clean=True)
    with RunDirectory.own(tmp_path / "run") as directory:
        assert recover(directory).findings == ()
        check(directory, counting)


class Cutting(WatchedSimulation):
    """Looks after each call at what a power cut there may leave."""

    def __init__(self, disk, counting, unwanted):
        super().__init__(disk)
        self.counting = counting
        self.unwanted = unwanted
        self.chance = random.Random(1)
        self.cuts = 0

    def after(self, call, path):
        for left in self.survivors(12, self.chance):
            self.cuts += 1
            self.prove(left)

    def prove(self, left):
        with RunDirectory.own(RUN, left, force=True) as directory:
            assert not recover(directory).damaged
            results = SegmentsOnly(directory)
            found = {one.identity: one for one in results.effective()}
            check = results.duplicates()
            assert (check.identities, check.damaged, check.undecodable) == ((), (), 0)
            assert found == {name: self.counting[name] for name in found}
            gone = [self.counting[name] for name in self.counting.keys() - found.keys()]
            assert not gone or self.unwanted.failed
            assert all(is_old(one.provenance) or one.outcome != output() for one in gone)
            assert results.append([*gone, *self.counting.values()]) == len(found) + len(gone)
            results.close()


class Lying(Cutting):
    """Says that a new segment is synced, and doesn't sync it."""

    def fdatasync(self, fd):
        if not str(self.path_of(fd)).endswith(".seg.tmp"):
            super().fdatasync(fd)


def compact_on(kind, unwanted):
    """Compact on a simulated disk of this kind, and return it."""
    with repeatable():
        calm = WatchedSimulation(fresh())
        with RunDirectory.own(RUN, calm, force=True) as directory:
            counting = fill(directory, SegmentsOnly)
            directory.mark_running()
        disk = kind(calm, counting, unwanted)
        with RunDirectory.own(RUN, disk, force=True) as directory:
            results = SegmentsOnly(directory)
            results.compact(unwanted)
            results.close()
    return disk


@pytest.mark.parametrize("unwanted", [Unwanted(), Unwanted(work=is_old, failed=True)])
def test_a_power_cut_at_any_call_loses_and_doubles_nothing(unwanted):
    """Whatever the disk kept of what wasn't synced."""
    assert compact_on(Cutting, unwanted).cuts > 100


def test_power_cuts_show_a_new_segment_that_is_not_synced():
    with pytest.raises(AssertionError):
        compact_on(Lying, Unwanted())
