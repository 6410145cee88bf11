"""Who holds an item, until when, and what becomes of two entries of one identity."""

from pathlib import Path

import pytest
from attrs import evolve
from msgspec.structs import replace

from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import RETIRED, Kind
from fafo_run.log.fs import Disk
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.queue.reader import QueueReader
from fafo_run.queue.selection import Selection
from fafo_run.queue.writer import QueueWriter
from fafo_run.results.results import Results
from tests.log_nouns import JUDGE, failure, item, look, name_of, provenance, record

LEASE = 10.0


@pytest.fixture
def directory(tmp_path):
    with RunDirectory.own(tmp_path / "run") as directory:
        yield directory


@pytest.fixture
def now():
    return [1000.0]


@pytest.fixture
def results(directory):
    results = Results(directory)
    yield results
    results.close()


@pytest.fixture
def queue(directory, results, now):
    queue = Queue(directory, done=results.done, lease=LEASE, monotonic=lambda: now[0])
    yield queue
    queue.close(clean=False)


def numbers(claims) -> list[int]:
    return [int(claim.item.key.strip("ké")) for claim in claims]


def retired(queue_folder) -> dict[str, list[int]]:
    """The numbers of the RETIRED entries of each segment, in order of the entries."""
    return {
        file.name: [
            number
            for number, entry in enumerate(e for e in look(file)[2] if e.kind == Kind.ITEM)
            if entry.marker == RETIRED
        ]
        for file in sorted(queue_folder.glob("*.seg"))
    }


def reclaim(queue: Queue) -> None:
    queue.release(queue.expired())


def test_a_heartbeat_extends_only_its_own_token(queue, now):
    queue.append([item(1), item(2)])
    first = queue.claim(2)
    now[0] += 9
    assert queue.extend(first[:1]) == 1
    now[0] += 2
    assert numbers(queue.expired()) == [2]
    reclaim(queue)
    (second,) = queue.claim(9)
    assert numbers([second]) == [2] and second.token > first[1].token and second.attempt == 2
    now[0] += 5
    assert queue.extend(first) == 1, "the claim that was lost extends nothing"
    now[0] += 5
    assert queue.expired() == [second]
    assert queue.extend([first[1]]) == 0 and queue.expired() == [second]


def test_leases_dont_see_the_clock_of_the_day(queue, now, monkeypatch):
    queue.append([item(1)])
    queue.claim(1)
    for hour in (3600.0, -3600.0):
        monkeypatch.setattr("time.time", lambda hour=hour: 1e9 + hour)
        monkeypatch.setattr("time.time_ns", lambda hour=hour: int((1e9 + hour) * 1e9))
        assert queue.expired() == []
    now[0] += LEASE
    assert numbers(queue.expired()) == [1]


def test_expiry_reads_only_the_affected_segment_again_from_the_earliest_entry(tmp_path, now):
    class Reading(Disk):
        reads: list[tuple[str, int]]

        def open(self, path, flags):
            fd = super().open(path, flags)
            self.names[fd] = path.name
            return fd

        def pread(self, fd, length, offset):
            self.reads.append((self.names[fd], offset))
            return super().pread(fd, length, offset)

    disk = Reading()
    disk.reads, disk.names = [], {}
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        queue = Queue(directory, segment_bytes=4500, lease=LEASE, monotonic=lambda: now[0])
        for start in (0, 10, 20):
            queue.append([item(number) for number in range(start, start + 10)])
        claims = queue.claim(99)
        assert numbers(claims) == list(range(30))
        names = sorted(file.name for file in directory.queue.glob("*.seg"))
        assert len(names) == 3
        now[0] += 9
        alive = [claim for claim in claims if numbers([claim])[0] not in (14, 16)]
        assert queue.extend(alive) == 28
        now[0] += 1
        reclaim(queue)
        disk.reads.clear()
        again = queue.claim(99)
        assert numbers(again) == [14, 16] and [claim.attempt for claim in again] == [2, 2]
        assert {name for name, _ in disk.reads} == {f"{names[1]}.tmp"}, "the name it was opened with"
        assert min(offset for _, offset in disk.reads) == claims[14].offset
        assert queue.claim(99) == []
        queue.close(clean=False)


def test_of_a_lost_claim_and_its_successor_the_first_record_counts(queue, results, now):
    queue.append([item(1), item(2)])
    first = queue.claim(2)
    now[0] += LEASE
    reclaim(queue)
    second = queue.claim(2)
    assert [claim.attempt for claim in second] == [2, 2]
    assert results.append([record(1)]) == 0
    assert queue.retire(first[:1]) == 1 and queue.late == 1
    assert queue.depth() == 1
    assert results.append([record(1)]) == 1, "the successor's answer is one too many"
    assert queue.retire(second[:1]) == 0 and queue.late == 2
    assert queue.is_current(second[1])
    results.append([record(2)])
    assert queue.retire(second[1:]) == 1 and queue.late == 2 and queue.depth() == 0


def test_what_was_given_back_and_read_again_is_not_handed_out_once_its_late_answer_is_there(queue, results):
    queue.append([item(number) for number in range(5)])
    claims = queue.claim(3)
    queue.release(claims)
    assert numbers(queue.claim(1)) == [0], "the others were read ahead"
    results.append([record(1)])
    queue.retire(claims[1:2])
    assert numbers(queue.claim(99)) == [2, 3, 4]


def test_an_identity_in_flight_is_not_handed_out_from_another_entry(queue, results):
    queue.append([item(1), item(1), item(2)])
    queue.append([item(1, lane=1024)])
    claims = queue.claim(9)
    assert numbers(claims) == [1, 2]
    assert queue.claim(9) == [] and queue.depth() == 4
    results.append([record(1), record(2)])
    queue.retire(claims)
    assert queue.depth() == 2
    assert queue.claim(9) == [], "both are retired, not handed out"
    assert queue.depth() == 0


def test_the_other_entry_is_as_good_when_the_flight_is_given_back(queue, results):
    queue.append([item(1)])
    queue.append([item(1, lane=1024), item(2, lane=1024)])
    first = queue.claim(9)
    assert numbers(first) == [1] and numbers(queue.claim(9)) == [2]
    queue.release(first)
    again = queue.claim(9)
    assert numbers(again) == [1] and again[0].offset == first[0].offset
    assert queue.claim(9) == []
    results.append([record(1), record(2)])
    queue.retire(again)
    assert queue.claim(9) == [] and queue.depth() == 1


def test_what_is_done_is_retired_and_never_handed_out(queue, results, directory):
    results.append([record(1), record(2, failure()), record(3, failure())])
    queue.append([item(1), item(2), replace(item(3), retry=1), item(4)])
    claims = queue.claim(9)
    assert numbers(claims) == [3, 4], "what was put back once more isn't done by the earlier failure"
    assert queue.depth() == 2
    assert retired(directory.queue) == {"00000001.seg": [0, 1]}
    results.append([evolve(record(3, failure()), retry=1)])
    queue.append([replace(item(3), retry=1)])
    queue.retire(claims)
    assert queue.claim(9) == [] and queue.depth() == 0


def test_one_claim_takes_out_every_entry_of_what_is_done(queue, results):
    for _ in range(4):
        queue.append([item(1), item(2), item(1)])
    claims = queue.claim(2)
    assert numbers(claims) == [1, 2] and queue.claim(9) == []
    results.append([record(1), record(2)])
    queue.retire(claims)
    assert queue.claim(9) == [] and queue.depth() == 0


def test_many_that_are_done_or_unwanted_are_passed_without_being_kept(queue, results):
    other = evolve(JUDGE, source="other")
    queue.append([item(number, other) for number in range(3000)])
    queue.select(Selection(lambda said: said.source != "other"))
    assert queue.depth() == 0
    results.append([record(number) for number in range(3000, 6000)])
    queue.append([item(number) for number in range(3000, 6001)])
    assert numbers(queue.claim(1)) == [6000]
    assert queue.depth() == 1 and queue.identities() == {
        *(name_of(number) for number in range(3000)),
        name_of(6000),
    }


def test_no_mapping_outlives_a_sync_of_the_markers(queue, directory):
    queue.append([item(number) for number in range(4)])
    queue.retire(queue.claim(2))
    assert "00000001.seg" in Path("/proc/self/maps").read_text()
    queue.sync_markers()
    assert "00000001.seg" not in Path("/proc/self/maps").read_text()
    queue.retire(queue.claim(1))
    assert retired(directory.queue) == {"00000001.seg": [0, 1, 2]}


def test_damage_refuses_the_whole_claim_and_changes_nothing(queue, directory):
    queue.append([item(number) for number in range(3)])
    file = next(directory.queue.glob("*.seg"))
    queue.append([item(1)])
    queue.append([item(number, provenance("other")) for number in range(5, 8)])
    entries = look(file)[2]
    with file.open("r+b") as handle:
        handle.seek([e for e in entries if e.kind == Kind.ITEM][2].offset + 60)
        handle.write(b"\xff\xff\xff")
    for _ in range(2):
        with pytest.raises(StoreError, match="can't be read"):
            queue.claim(9)
        assert queue.depth() == 7
    queue.close(clean=False)
    recover(directory)
    whole = Queue(directory)
    assert numbers(whole.claim(9)) == [0, 1]
    whole.close(clean=False)


def test_an_attempt_without_an_answer_is_counted_durably(queue, directory, results):
    queue.append([item(1), item(2)])
    claims = queue.claim(2)
    queue.again(claims[:1])
    assert queue.depth() == 2 and not queue.is_current(claims[0])
    again = queue.claim(9)
    assert numbers(again) == [1] and (again[0].item.attempts, again[0].attempt) == (1, 2)
    queue.again([claims[0]])
    assert queue.depth() == 2, "a late claim counts nothing"
    queue.again(again)
    queue.close(clean=False)
    recover(directory)
    later = Queue(directory, done=results.done)
    assert later.settle() == 0 and later.identities() == {name_of(1), name_of(2)}
    found = {number: claim for claim in later.claim(9) for number in numbers([claim])}
    assert (found[1].item.attempts, found[1].attempt) == (2, 3)
    assert (found[2].item.attempts, found[2].attempt) == (0, 1), "a crash costs no attempt"
    later.close(clean=False)


def test_without_room_for_the_new_entry_the_claims_hold_what_they_held(tmp_path):
    from tests.unit.test_queue import FaultyDisk

    disk = FaultyDisk()
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        queue = Queue(directory)
        queue.append([item(1)])
        claims = queue.claim(1)
        disk.room = 0
        with pytest.raises(StoreError):
            queue.again(claims)
        assert queue.is_current(claims[0]) and queue.depth() == 1
        disk.room = 1 << 40
        queue.again(claims)
        assert queue.claim(9)[0].item.attempts == 1 and queue.depth() == 1
        queue.close(clean=False)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_of_entries_that_a_crash_left_the_one_with_most_attempts_counts(directory, results, order):
    queue = Queue(directory)
    queue.append([replace(item(1), attempts=attempts) for attempts in order])
    queue.close(clean=False)
    recover(directory)
    queue = Queue(directory, done=results.done)
    assert queue.settle() == 0
    (claim,) = queue.claim(9)
    assert claim.item.attempts == 2 and queue.claim(9) == []
    assert queue.depth() == 1
    results.append([record(1)])
    queue.retire([claim])
    assert queue.claim(9) == [] and queue.depth() == 0
    queue.close(clean=False)


def test_settling_marks_what_has_a_record_and_names_the_rest(queue, results, directory):
    queue.append([item(1), item(2), replace(item(3), retry=1), replace(item(4), failure=failure())])
    results.append([record(1), record(3, failure()), record(4, failure())])
    assert (queue.settle(), queue.settle()) == (2, 0)
    assert queue.identities() == {name_of(2), name_of(3)}
    assert numbers(queue.claim(9)) == [2, 3]


def test_what_recovery_walked_is_not_walked_again(tmp_path):
    class Counting(Disk):
        read = 0

        def pread(self, fd, length, offset):
            found = super().pread(fd, length, offset)
            self.read += len(found)
            return found

    disk = Counting()
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        queue = Queue(directory)
        queue.append([item(number, suffix=tuple(range(500))) for number in range(3000)])
        queue.close(clean=False)
        size = sum(file.stat().st_size for file in directory.queue.iterdir())
        disk.read = 0
        report = recover(directory)
        queue = Queue(directory, walked=report.queue)
        assert queue.depth() == 3000
        assert queue.settle() == 0
        assert disk.read < 2.2 * size, "once by recovery, once to settle"
        assert queue.depth() == 3000
        queue.close(clean=False)


def test_what_a_producer_appends_for_another_run_isnt_counted(queue, directory):
    queue.select(Selection(lambda said: said.source == JUDGE.source))
    writer = QueueWriter(RunDirectory.join(directory.path))
    writer.append([item(1), item(2, evolve(JUDGE, source="other"))])
    assert queue.refresh() == 2 and queue.depth() == 1
    assert numbers(queue.claim(9)) == [1]
    writer.append([item(3, evolve(JUDGE, source="other")), item(4)])
    assert queue.refresh() == 2 and queue.depth() == 2
    writer.close()
    queue.refresh()
    assert numbers(queue.claim(9)) == [4] and queue.depth() == 2
    assert QueueReader.open(directory.path).depth() == 4
