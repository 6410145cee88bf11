import errno
import os
import struct
import threading

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fafo_build.errors import StoreError
from fafo_run.item import pack_ids
from fafo_run.log.actions import Why
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull, SyncFailed
from fafo_run.log.recovery import recover
from fafo_run.queue.draw import Done
from fafo_run.queue.order import Order
from fafo_run.queue.queue import Queue
from fafo_run.queue.reader import QueueReader
from fafo_run.queue.selection import Selection
from fafo_run.queue.writer import QueueWriter
from tests.log_nouns import JUDGE, item, look, name_of, provenance

OTHER = provenance("explain")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def directory(path):
    with RunDirectory.own(path) as directory:
        yield directory


@pytest.fixture
def queue(directory):
    queue = Queue(directory)
    yield queue
    queue.close(clean=False)


def reopen(queue: Queue, directory: RunDirectory, *, clean: bool = False) -> Queue:
    queue.close(clean=clean)
    recover(directory)
    return Queue(directory)


def numbers(claims) -> list[int]:
    return [number_of(claim.item) for claim in claims]


def number_of(found) -> int:
    return int(found.key.strip("ké"))


def test_items_come_back_exactly(queue):
    items = [
        item(1),
        item(2, suffix=()),
        item(3, suffix=(65_536, 2**32 - 1)),
        item(4, suffix=tuple(range(50))),
    ]
    items[1] = replace(items[1], bounds=())
    queue.append(items)
    assert [claim.item for claim in queue.claim(9)] == items


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.text(max_size=5)), min_size=1, max_size=9))
def test_any_item_round_trips(tmp_path_factory, drawn):
    with RunDirectory.own(tmp_path_factory.mktemp("run")) as directory:
        queue = Queue(directory)
        items = [
            replace(item(number), key=key, suffix=pack_ids((id_,)), bounds=((0, 1),))
            for number, (id_, key) in enumerate(drawn)
        ]
        queue.append(items)
        queue = reopen(queue, directory)
        assert [claim.item for claim in queue.claim(99)] == items
        queue.close(clean=False)


def test_durable_across_an_unclean_end(queue, directory):
    queue.append([item(number) for number in range(10)])
    queue.retire(queue.claim(3))
    again = reopen(queue, directory)
    assert again.depth() == 7
    assert again.identities() == {name_of(number) for number in range(3, 10)}
    assert numbers(again.claim(99)) == list(range(3, 10))
    again.close(clean=True)


def test_a_segment_that_was_there_is_never_appended_to(queue, directory, path):
    queue.append([item(1)])
    queue = reopen(queue, directory)
    before = (path / "queue" / "00000001.seg").read_bytes()
    queue.append([item(2)])
    assert (path / "queue" / "00000001.seg").read_bytes() == before
    assert look(path / "queue" / "00000001.seg")[1].seal is not None
    assert look(path / "queue" / "00000002.seg")[1].seal is None
    queue.close(clean=True)


def test_claims_drain_one_artifact_and_lane_before_the_next(queue):
    queue.append([item(1), item(2, OTHER), item(3, lane=1024), item(4), item(5, OTHER)])
    assert numbers(queue.claim(1)) == [1]
    queue.append([item(6)])
    assert numbers(queue.claim(99)) == [4, 6]
    assert numbers(queue.claim(1)) == [2]
    queue.append([item(7)])
    assert numbers(queue.claim(99)) == [5], "the present group goes on, although the other is older"
    assert numbers(queue.claim(99)) == [7]
    assert numbers(queue.claim(99)) == [3]
    assert queue.claim(99) == [] and queue.depth() == 7


def test_artifacts_are_handed_out_in_the_order_that_is_asked_for_round_and_round(queue):
    a, b, c, other = (provenance(name) for name in ("a", "b", "c", "other"))
    order = Order()
    order.follow([said.artifact for said in (a, b, a, c)])
    queue.append([item(1, c), item(2, other), item(3, b), item(4, b, lane=64), item(5, a), item(6, c)])
    assert numbers(queue.claim(99, order)) == [5]
    assert numbers(queue.claim(99, order)) == [3]
    late = queue.claim(1, order)
    assert numbers(late) == [4], "the other lane of the same artifact comes before the next artifact"
    queue.append([item(7, a), item(8, b)])
    assert numbers(queue.claim(99, order)) == [8], "what comes back to the present artifact comes first"
    first = queue.claim(1, order)
    assert numbers(first) == [1], "then it goes on, although the first in the order waits again"
    queue.release(first)
    assert numbers(queue.claim(99, order)) == [1, 6]
    assert numbers(queue.claim(99, order)) == [7], "and round"
    assert numbers(queue.claim(99, order)) == [2], "what nobody put into the order comes last"
    assert queue.claim(99, order) == []


def test_claim_of_nothing(queue):
    queue.append([item(1)])
    assert queue.claim(0) == []


def test_release_hands_out_again_with_the_next_attempt(queue):
    queue.append([item(number) for number in range(5)])
    first = queue.claim(4)
    queue.retire(first[1:2])
    queue.release([first[0], first[2]])
    again = queue.claim(99)
    assert numbers(again) == [0, 2, 4], "neither the retired one nor the one in flight"
    assert [claim.attempt for claim in again] == [2, 2, 1]


def test_a_late_completion_is_told_apart(queue):
    queue.append([item(1)])
    (late,) = queue.claim(1)
    queue.release([late])
    (current,) = queue.claim(1)
    assert not queue.is_current(late) and queue.is_current(current)
    queue.release([late])
    assert queue.is_current(current), "a late claim can't give back what another holds"
    assert queue.claim(1) == []
    assert queue.retire([late]) == 1
    assert not queue.is_current(current) and queue.retire([current]) == 0 and queue.depth() == 0


def test_leases_end_on_the_monotonic_clock(directory):
    now = [100.0]
    queue = Queue(directory, lease=10, monotonic=lambda: now[0])
    queue.append([item(1)])
    claims = queue.claim(1)
    assert queue.expired() == [] and queue.expired(109.9) == []
    now[0] = 110.0
    assert queue.expired() == claims
    queue.close(clean=True)


def test_rotation(directory, path):
    queue = Queue(directory, segment_bytes=8192)
    for number in range(100):
        queue.append([item(number)])
    files = sorted((path / "queue").glob("*.seg"))
    assert len(files) > 2
    assert all(look(file)[1].seal is not None for file in files[:-1])
    assert numbers(queue.claim(999)) == list(range(100))
    queue.close(clean=False)


def test_a_run_sees_only_what_it_selects_and_leaves_the_rest_waiting(directory):
    queue = Queue(directory)
    queue.append([item(number) for number in range(6)])
    queue.close(clean=True)
    queue = Queue(directory)
    queue.select(Selection(lambda _: True, {name_of(number) for number in range(0, 9, 2)}.__contains__))
    assert queue.depth() == 3
    queue.append([item(8)])
    assert queue.depth() == 4
    queue.release(queue.claim(2))
    claims = queue.claim(99)
    assert numbers(claims) == [0, 2, 4, 8]
    queue.retire(claims)
    assert queue.depth() == 0
    assert queue.claim(99) == []
    queue.close(clean=True)
    again = Queue(directory)
    assert numbers(again.claim(99)) == [1, 3, 5]
    again.close(clean=False)


def test_a_segment_is_dropped_only_when_nobody_wants_any_of_it(directory, path):
    again = evolve(JUDGE, source="again")
    queue = Queue(directory)
    queue.append([item(1), item(2), item(3, again)])
    queue.append([item(number, again, lane=2048) for number in (4, 5)])
    queue.close(clean=True)
    queue = Queue(directory)
    assert queue.drop(Selection(lambda said: said.source != "again")) == 2
    assert sorted(file.name for file in (path / "queue").iterdir()) == ["00000001.seg"]
    assert queue.depth() == 3
    assert list(QueueReader.open(path).unrecorded(Outcomes())) == [], "nothing was done, so nothing is marked"
    assert numbers(queue.claim(99)) == [1, 2, 3]
    queue.close(clean=False)


def test_a_segment_is_dropped_when_no_identity_that_waits_in_it_is_kept(directory, path):
    queue = Queue(directory)
    queue.append([item(1), item(2)])
    queue.append([item(number, lane=2048) for number in (3, 4)])
    queue.retire([claim for claim in queue.claim(9) if claim.item.identity == name_of(1)])
    queue.close(clean=True)
    queue = Queue(directory)
    assert queue.drop(Selection(lambda _: True, lambda name: name not in {name_of(2), name_of(4)})) == 1
    assert queue.identities() == {name_of(3), name_of(4)}
    assert queue.identities(Selection(lambda _: True, lambda name: name != name_of(3))) == {name_of(4)}
    assert queue.identities(Selection(lambda said: said != JUDGE)) == set()
    queue.close(clean=False)


def test_collect_removes_what_is_done_and_nothing_else(directory, path):
    now = [0.0]
    queue = Queue(directory, segment_bytes=8192, idle=30.0, monotonic=lambda: now[0])
    queue.append([item(number) for number in range(50)])
    queue.append([item(50)])
    claims = queue.claim(50)
    queue.retire(claims[:-1])
    queue.sync_markers()
    assert queue.collect() == 0
    queue.retire(claims[-1:])
    assert queue.collect() == 1
    assert [file.name for file in (path / "queue").iterdir()] == ["00000002.seg"]
    assert queue.depth() == 1
    assert queue.retire(claims) == 0, "claims on a segment that is gone are harmless"
    queue.retire(queue.claim(1))
    queue.append([item(51)])
    assert queue.collect() == 0, "still in use"
    queue.retire(queue.claim(1))
    now[0] = 29.9
    assert queue.collect() == 0, "not idle for long enough"
    now[0] = 30.0
    assert queue.collect() == 1, "idle: sealed, then removed"
    queue.append([item(52)])
    assert numbers(queue.claim(9)) == [52]
    queue.close(clean=False)


def test_collect_counts_anew_and_never_trusts_a_counter(queue, path):
    queue.append([item(1), item(2)])
    queue.retire(queue.claim(2))
    queue.collect()
    offset = look(path / "queue" / "00000001.seg")[2][-1].offset
    with (path / "queue" / "00000001.seg").open("r+b") as file:
        file.seek(offset + 4)
        file.write(struct.pack("<I", 0xB3B6A9BB))
    assert queue.collect() == 0
    assert (path / "queue" / "00000001.seg").exists()


def test_a_segment_that_is_long_idle_is_sealed_though_its_items_wait(directory, path):
    queue = Queue(directory, idle=0.0)
    queue.append([item(1), item(2)])
    assert queue.collect() == 0
    assert look(path / "queue" / "00000001.seg")[1].seal is not None
    assert numbers(queue.claim(9)) == [1, 2]
    queue.close(clean=False)


def test_a_reader_holds_off_the_collector_and_nothing_else(directory, path):
    now = [0.0]
    queue = Queue(directory, monotonic=lambda: now[0])
    queue.append([item(1), item(2)])
    reading = QueueReader.open(path).items()
    assert next(reading) == item(1)
    queue.append([item(3)])
    queue.retire(queue.claim(3))
    now[0] = 60.0
    assert queue.collect() == 0 and queue.collect() == 0
    assert list(reading) == [item(2)], "what it had begun to read"
    assert queue.collect() == 1
    assert QueueReader.open(path).depth() == 0
    queue.close(clean=False)


def test_reader_beside_a_run(queue, path):
    reader = QueueReader.open(path)
    queue.append([item(1), item(2, OTHER), item(3)])
    queue.retire(queue.claim(1))
    assert reader.depth() == 2 and reader.identities() == {name_of(2), name_of(3)}


def test_a_clean_close_leaves_nothing_of_what_is_done(queue, path):
    queue.append([item(1)])
    queue.retire(queue.claim(1))
    queue.close(clean=True)
    queue.close(clean=True)
    assert list((path / "queue").iterdir()) == []


def test_step_7_retires_what_has_a_record(queue, directory):
    queue.append([item(number) for number in range(4)])
    queue = reopen(queue, directory)
    failed = done_of(Outcomes({name_of(1): 9, name_of(3): 9}))
    assert (queue.settle(failed), queue.settle(failed)) == (2, 0)
    assert numbers(queue.claim(9)) == [0, 2]
    queue.close(clean=True)


def test_step_7_keeps_what_was_put_back_after_its_failure(queue, directory):
    queue.append([item(1), replace(item(2), retry=1), replace(item(3), retry=2)])
    queue = reopen(queue, directory)
    failed_once = Outcomes(dict.fromkeys(map(name_of, range(4)), 0))
    assert queue.settle(done_of(failed_once)) == 1
    assert numbers(queue.claim(9)) == [2, 3]
    queue.close(clean=True)


class Outcomes(dict):
    """By identity: after how many retries it failed."""

    def has_output(self, identity: bytes) -> bool:
        return False

    def is_done(self, identity: bytes, retry: int = 0) -> bool:
        return retry <= self.get(identity, -1)


def done_of(outcomes: Outcomes) -> Done:
    return lambda asked: [outcomes.is_done(*of) for of in asked]


def test_what_others_append_and_nobody_wants_is_no_depth(queue, directory, path):
    queue.select(Selection(lambda said: said == OTHER))
    writer = QueueWriter(RunDirectory.join(path))
    writer.append([item(1), item(2, OTHER)])
    queue.refresh()
    writer.append([item(3), item(4, OTHER)])
    queue.refresh()
    assert queue.depth() == 2
    writer.close()
    late = QueueWriter(RunDirectory.join(path))
    late.append([item(5), item(6, OTHER)])
    late.close()
    queue.refresh()
    assert queue.depth() == 3
    assert sorted(numbers(queue.claim(9))) == [2, 4, 6]


def test_an_odd_marker_reads_as_live(queue, directory, path):
    queue.append([item(1)])
    queue.retire(queue.claim(1))
    queue.close(clean=False)
    file = path / "queue" / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[look(file)[2][-1].offset + 4] ^= 1
    file.write_bytes(data)
    report = recover(directory)
    assert report.actions[0].why is Why.ODD_MARKER and report.damaged
    queue = Queue(directory)
    assert numbers(queue.claim(9)) == [1]
    queue.close(clean=True)


def test_damage_stops_claims_and_changes_nothing_until_recovery(queue, directory, path):
    queue.append([item(number) for number in range(3)])
    file = path / "queue" / "00000001.seg"
    offset = look(file)[2][2].offset
    with file.open("r+b") as handle:
        handle.seek(offset + 50)
        handle.write(b"\xff\xff\xff")
    with pytest.raises(StoreError, match="can't be read") as caught:
        queue.claim(3)
    assert caught.value.problems[0].cure
    assert queue.depth() == 3
    queue = reopen(queue, directory)
    assert queue.depth() == 2
    assert queue.settle(lambda asked: [False] * len(asked)) == 0
    assert queue.identities() == {name_of(0), name_of(2)}
    queue.select(Selection(lambda _: True))
    assert queue.depth() == 2, "what is damaged isn't waited for"
    assert numbers(queue.claim(9)) == [0, 2]
    queue.close(clean=True)


def test_lost_provenance_is_an_error_that_says_what_to_do(queue, directory, path):
    queue.append([item(1)])
    queue.close(clean=False)
    file = path / "queue" / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[4096 + 60] ^= 1
    file.write_bytes(data)
    recover(directory)
    queue = Queue(directory)
    with pytest.raises(StoreError, match="provenance"):
        queue.claim(1)
    queue.close(clean=False)


class FaultyDisk(Disk):
    room = 1 << 40
    fail_sync = False

    def pwrite(self, fd, data, offset):
        if offset + len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        if self.fail_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


def test_full_disk_queues_nothing_and_the_queue_goes_on(path):
    disk = FaultyDisk()
    with RunDirectory.own(path, disk) as directory:
        queue = Queue(directory)
        queue.append([item(1)])
        disk.room = 4096 + 2000
        with pytest.raises(DiskFull):
            queue.append([item(number) for number in range(2, 50)])
        assert queue.depth() == 1
        disk.room = 1 << 40
        queue.append([item(99)])
        assert numbers(queue.claim(9)) == [1, 99]
        queue.close(clean=False)


def test_a_failed_sync_is_never_tried_again(path):
    disk = FaultyDisk()
    with RunDirectory.own(path, disk) as directory:
        queue = Queue(directory)
        queue.append([item(1)])
        disk.fail_sync = True
        with pytest.raises(SyncFailed):
            queue.append([item(2)])
        disk.fail_sync = False
        for call in (
            lambda: queue.append([item(3)]),
            lambda: queue.claim(1),
            queue.sync_markers,
            queue.collect,
        ):
            with pytest.raises(SyncFailed):
                call()
        queue.close(clean=True)


def test_three_threads(queue):
    total, done = 400, []
    failed: list[BaseException] = []

    def produce():
        for number in range(0, total, 10):
            queue.append([item(at) for at in range(number, number + 10)])

    def consume():
        try:
            while len(done) < total:
                claims = queue.claim(7)
                queue.release(claims[:1])
                done.extend(numbers(claims[1:]))
                queue.retire(claims[1:])
                if not claims[1:]:
                    claims = queue.claim(1)
                    done.extend(numbers(claims))
                    queue.retire(claims)
                queue.sync_markers()
                queue.collect()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and sorted(done) == list(range(total)) and queue.depth() == 0
