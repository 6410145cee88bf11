"""Power cuts on a simulated disk: at every call, with every mixture of what wasn't synced; and refusals too.

The rule is in `tests/disk/oracle.py`: nothing acknowledged is lost, nothing is twice, nothing is invented.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.fs import DiskFull, SyncFailed
from tests.disk import faults
from tests.disk.life import Life, fresh, repeatable
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import OPERATIONS, Bench, Cuts, Kind, prove, run, traces
from tests.disk.simulated import SimulatedDisk
from tests.disk.wander import wander
from tests.disk.watched import Refusing, Stuttering, WatchedSimulation

ALL = "ECSRGO"


@pytest.fixture
def start() -> Iterator[SimulatedDisk]:
    """A disk with an empty store; equal traces on it write equal bytes."""
    with repeatable():
        yield fresh()


def test_every_short_trace(start: SimulatedDisk) -> None:
    cuts = Cuts(16)
    found = list(traces(start, 3, cuts))
    assert {"EC", "ECR", "ECO", "EER"} <= set(found), "these change something"
    assert len(found) > 15 and cuts.cuts > 150 and cuts.proved > 100


def test_every_short_trace_beside_a_producer(start: SimulatedDisk) -> None:
    cuts = Cuts(8)
    found = list(traces(start, 3, cuts, operations="PCRO"))
    assert {"PC", "PCR", "PCO"} <= set(found) and cuts.proved > 60


@pytest.mark.slow
@pytest.mark.parametrize("second", "EPCSRGO")
def test_every_trace_of_four_operations_beside_a_producer(start: SimulatedDisk, second: str) -> None:
    cuts = Cuts(8)
    if run(start, "P" + second, cuts):
        list(traces(start, 4, cuts, "P" + second, operations="EPCSRGO"))
    assert cuts.cuts > 0


def test_a_second_cut_within_recovery(start: SimulatedDisk) -> None:
    cuts = Cuts(8, nested=2)
    list(traces(start, 2, cuts))
    assert cuts.cuts > 300 and cuts.proved > 60


@pytest.mark.slow
@pytest.mark.parametrize("second", ALL)
def test_every_trace_of_six_operations(start: SimulatedDisk, second: str) -> None:
    # Nothing but E changes an empty store.
    cuts = Cuts(8)
    if run(start, "E" + second, cuts):
        list(traces(start, 6, cuts, "E" + second))
    assert cuts.cuts > 0


@pytest.mark.slow
@pytest.mark.parametrize("second", ALL)
def test_every_trace_of_four_operations_with_a_second_cut_within_recovery(
    start: SimulatedDisk, second: str
) -> None:
    cuts = Cuts(16, nested=2)
    if run(start, "E" + second, cuts):
        list(traces(start, 4, cuts, "E" + second))
    assert cuts.cuts > 0


@pytest.mark.parametrize("seed", range(4))
def test_random_traces(start: SimulatedDisk, seed: int) -> None:
    for number in range(seed * 10, seed * 10 + 10):
        wander(start, number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 3000, 100))
def test_two_thousand_long_random_traces(start: SimulatedDisk, seed: int) -> None:
    for number in range(seed, seed + 100):
        wander(start, number, lives=5, steps=20)


# That the proof isn't blind.


@pytest.mark.parametrize("kind", faults.LIES.values(), ids=faults.LIES)
def test_short_traces_show_a_sync_that_is_left_out(start: SimulatedDisk, kind: Kind) -> None:
    with pytest.raises(Broken):
        list(traces(start, 3, Cuts(16, kind=kind)))


@pytest.mark.parametrize("fault", faults.PATCHES.values(), ids=faults.PATCHES)
def test_short_traces_show_a_fault(start: SimulatedDisk, fault: Any) -> None:
    with fault(), pytest.raises(Broken):
        list(traces(start, 3, Cuts(16)))


@pytest.mark.parametrize("kind", faults.LIES.values(), ids=faults.LIES)
def test_random_traces_show_a_sync_that_is_left_out(start: SimulatedDisk, kind: Kind) -> None:
    with pytest.raises(Broken):
        for seed in range(60):
            wander(start, seed, kind=kind)


@pytest.mark.parametrize("name", sorted(set(faults.PATCHES) - {"provenance in one sync with its entries"}))
def test_random_traces_show_a_fault(start: SimulatedDisk, name: str) -> None:
    with faults.PATCHES[name](), pytest.raises(Broken):
        for seed in range(100):
            wander(start, seed)


def test_a_second_cut_shows_a_recovery_that_does_harm_before_it_is_safe(start: SimulatedDisk) -> None:
    with faults.recovery_rewrites_in_place():
        list(traces(start, 2, Cuts(4), operations="EC"))
        with pytest.raises(Broken):
            list(traces(start, 2, Cuts(4, nested=4), operations="EC"))


# A disk that refuses.

SCRIPT = "EECRCGSOECCRGO"


def scripted(disk: Refusing, *, give_up: bool) -> Oracle:
    """Run the script on a disk that refuses one call; return what was acknowledged until the end.

    Whatever is refused becomes a `StoreError`. After a refused sync nothing goes on; after another
    refusal the run ends (`give_up`) or goes on.
    """
    oracle = Oracle()
    bench: Bench | None = None
    try:
        bench = Bench(disk, oracle)
        for at, name in enumerate(SCRIPT):
            try:
                OPERATIONS[name](bench, at)
            except SyncFailed:
                raise
            except StoreError:
                if give_up or name == "O":
                    raise
        bench.life.close()
    except StoreError:
        if bench is not None:
            bench.life.drop()
    return oracle


def refuse_each(start: SimulatedDisk, error: int, *, give_up: bool, survivors: int = 2, step: int = 1) -> int:
    """Refuse each `step`th call of the script in turn, and prove what is left; return how many there are."""
    at = 0
    while True:
        disk = Refusing(start.untouched(), at, error)
        oracle = scripted(disk, give_up=give_up)
        if disk.refused is None:
            return at
        try:
            prove(disk.untouched(), oracle, refused=True)
            for left in disk.survivors(survivors, random.Random(at)):
                prove(left, oracle, refused=True)
        except Broken as broken:
            broken.add_note(f"after {disk.refused}, call {at} of {SCRIPT}")
            raise
        at += step


@pytest.mark.parametrize(
    ("error", "give_up"), [(errno.EIO, True), (errno.ENOSPC, False)], ids=["EIO, stops", "ENOSPC, goes on"]
)
def test_each_call_refused_once(start: SimulatedDisk, error: int, give_up: bool) -> None:
    assert refuse_each(start, error, give_up=give_up, step=3) > 60


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("give_up", [True, False], ids=["stops", "goes on"])
def test_each_call_refused_once_and_more_survivors(start: SimulatedDisk, error: int, give_up: bool) -> None:
    assert refuse_each(start, error, give_up=give_up, survivors=4) > 60


def test_refusals_show_a_sync_that_is_tried_again(start: SimulatedDisk) -> None:
    with faults.sync_tried_again(), pytest.raises(Broken):
        refuse_each(start, errno.EIO, give_up=False)


def fill_up(start: SimulatedDisk, room: int) -> tuple[bool, Oracle]:
    """Run the script with so much room; return whether it was full, and what was acknowledged.

    Raises `Broken` when something isn't there, right after the end or once there is room again.
    """
    disk = WatchedSimulation(start.untouched())
    disk.room = disk.used() + room
    oracle = Oracle()
    full = False
    bench: Bench | None = None
    try:
        bench = Bench(disk, oracle)
        for at, name in enumerate(SCRIPT):
            OPERATIONS[name](bench, at)
        bench.life.close()
    except DiskFull:
        full = True
        if bench is not None:
            bench.life.drop()
    disk.room = None
    prove(disk.untouched(), oracle, refused=True)
    for left in disk.survivors(2, random.Random(room)):
        prove(left, oracle, refused=True)
    return full, oracle


def test_a_disk_that_fills_up_at_any_byte(start: SimulatedDisk) -> None:
    seen = [fill_up(start, room)[0] for room in range(0, 60_000, 1201)]
    assert seen == sorted(seen, reverse=True), "with more room it gets further"
    assert set(seen) == {True, False}


def test_a_full_disk_shows_a_short_write_that_is_believed(start: SimulatedDisk) -> None:
    with faults.short_writes_believed(), pytest.raises(Broken):
        for room in range(0, 30_000, 211):
            fill_up(start, room)


def test_short_writes(start: SimulatedDisk) -> None:
    bench = Bench(Stuttering(start.untouched()))
    for at, name in enumerate(SCRIPT):
        OPERATIONS[name](bench, at)
    bench.life.close()
    prove(bench.disk.untouched(), bench.oracle, killed=True)


def test_short_writes_show_one_that_is_believed(start: SimulatedDisk) -> None:
    def whole() -> None:
        bench = Bench(Stuttering(start.untouched()))
        bench.enqueue([1, 2])
        bench.life.drop()
        prove(bench.disk.untouched(), bench.oracle, killed=True)

    whole()
    with faults.short_writes_believed(), pytest.raises((Broken, StoreError)):
        whole()


def test_the_cut_that_kept_items_and_lost_their_provenance(start: SimulatedDisk) -> None:
    """Sectors of one write survive in any mixture: what an entry needs is durable before it is written."""
    disk = WatchedSimulation(start.untouched())
    bench = Bench(disk)
    left: list[SimulatedDisk] = []
    disk.after = lambda call, path: left.extend(
        disk.survivors(200, random.Random(1)) if path.name == "00000001.seg" else ()
    )
    bench.enqueue([1, 3, 5, 7])
    assert len(left) > 200
    for one in left:
        life = Life(one)
        assert len(life.claim(10)) == life.queue.depth() == len(life.waiting())
