"""A state machine over all that can be done to a store, killed and cut at moments that Hypothesis picks.

What it finds it makes small. The disk is simulated, the rule is that of `tests/disk/oracle.py`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.disk import faults
from tests.disk.life import fresh, repeatable
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import Bench, Kind, prove
from tests.disk.simulated import SimulatedDisk
from tests.disk.watched import Killed, WatchedSimulation
from tests.log_nouns import failure

with repeatable():
    START = fresh()

few = st.integers(1, 5)
seeds = st.integers(0, 2**32)


class StoreMachine(RuleBasedStateMachine):
    """One store, through many lives."""

    kind: Kind = WatchedSimulation

    def __init__(self) -> None:
        super().__init__()
        self.oracle = Oracle()
        self.last = 0
        self.bench: Bench | None = None
        self.left: SimulatedDisk | None = None
        self.begin(START)

    def begin(self, disk: SimulatedDisk) -> None:
        self.held: list = []
        self.bench = Bench(self.kind(disk.killed()), self.oracle, segment_bytes=5000)

    def ends(self, disk: SimulatedDisk, *, killed: bool) -> None:
        prove(disk.killed(), self.oracle, kind=self.kind)
        self.begin(disk)

    @rule(count=few, lanes=st.integers(1, 3))
    def enqueue(self, count: int, lanes: int) -> None:
        first, self.last = self.last, self.last + count
        self.bench.enqueue(range(first, self.last), lanes)

    @rule(count=few)
    def claim(self, count: int) -> None:
        self.held += self.bench.life.claim(count)

    @precondition(lambda self: self.held)
    @rule(count=few, fails=st.booleans())
    def finish(self, count: int, fails: bool) -> None:
        self.bench.finish(self.held[:count], failure() if fails else None)
        del self.held[:count]

    @precondition(lambda self: self.held)
    @rule(count=few)
    def two_finish_one_claim(self, count: int) -> None:
        claims = self.held[:count]
        self.bench.life.release(claims)
        del self.held[:count]
        self.bench.complete(count)
        self.bench.finish(claims)

    @rule()
    def sync_markers(self) -> None:
        self.bench.life.sync_markers()

    @rule()
    def roll(self) -> None:
        self.bench.life.roll()

    @rule()
    def collect(self) -> None:
        self.bench.life.collect()

    @rule()
    def stop_and_start(self) -> None:
        self.held = []
        self.bench.reopen()

    @rule()
    def kill(self) -> None:
        self.ends(self.bench.disk, killed=True)

    @rule(seed=seeds)
    def cut(self, seed: int) -> None:
        self.ends(self.bench.disk.survivor(random.Random(seed)), killed=False)

    @rule(
        seed=seeds, calls=st.integers(1, 12), what=st.sampled_from(["enqueue", "complete", "collect", "stop"])
    )
    def cut_within(self, seed: int, calls: int, what: str) -> None:
        disk = self.bench.disk
        left: list[SimulatedDisk] = []

        def after(call: str, path: Path) -> None:
            nonlocal calls
            calls -= 1
            if calls == 0:
                left.append(disk.survivor(random.Random(seed)))
                raise Killed

        does: dict[str, Callable[[], object]] = {
            "enqueue": lambda: self.enqueue(3, 2),
            "complete": lambda: self.bench.complete(3),
            "collect": lambda: (self.bench.life.roll(), self.bench.life.collect()),
            "stop": lambda: self.bench.reopen(),
        }
        disk.after = after
        with contextlib.suppress(Killed):
            does[what]()
        disk.after = lambda call, path: None
        self.ends(left[0] if left else disk.survivor(random.Random(seed)), killed=False)

    @invariant()
    def nothing_is_lost_while_it_lives(self) -> None:
        life = self.bench.life
        assert life.queue.depth() == len(life.waiting())
        assert all(identity in life.results for identity in self.oracle.recorded)


QUICK = settings(
    max_examples=25, stateful_step_count=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def run(kind: Kind, how: settings) -> None:
    machine = type("Machine", (StoreMachine,), {"kind": staticmethod(kind)})
    with repeatable():
        run_state_machine_as_test(machine, settings=how)


def test_the_machine() -> None:
    run(WatchedSimulation, QUICK)


@pytest.mark.slow
def test_the_machine_for_long() -> None:
    run(WatchedSimulation, settings(QUICK, max_examples=300, stateful_step_count=40))


@pytest.mark.parametrize("lie", ["results aren't synced", "the queue isn't synced", "folders aren't synced"])
def test_the_machine_shows_a_sync_that_is_left_out(lie: str) -> None:
    with pytest.raises((Broken, BaseExceptionGroup)) as caught:
        run(faults.LIES[lie], settings(QUICK, phases=[Phase.generate]))
    assert isinstance(caught.value, Broken) or caught.group_contains(Broken)
