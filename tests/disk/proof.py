"""Cuts the power at the calls of a trace of operations on a simulated disk, and holds the rule after each.

A `Bench` is a store with its oracle; `prove` is what has to hold of what a cut left; `Cuts` stands beside a
disk and proves what a cut at each of its calls may leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fafo_run.item import QueuedItem
from fafo_run.log.fs import Disk
from fafo_run.queue.writer import QueueWriter
from tests.disk.life import Life, make_item, make_record, unread
from tests.disk.oracle import Broken, Oracle
from tests.disk.simulated import SimulatedDisk
from tests.disk.watched import WatchedSimulation

AFTERWARDS = 1_000_000
"""Numbers from here on are of what is appended after a cut, to see that the store still takes it."""

Kind = Callable[[SimulatedDisk], WatchedSimulation]
"""Makes the disk that a life works on; one that lies is a seeded fault."""


class Bench:
    """A life, and the oracle that is told of everything it does."""

    def __init__(self, disk: Disk, oracle: Oracle | None = None, life: Life | None = None, **settings: Any):
        self.disk = disk
        self.oracle = oracle or Oracle()
        self.producer: QueueWriter | None = None
        self.life = life or Life(disk, **settings)

    def enqueue(self, numbers: Sequence[int], lanes: int = 1) -> None:
        self.put([make_item(number, lanes) for number in numbers])

    def put(self, items: Sequence[QueuedItem]) -> None:
        self.oracle.offer_items(items)
        self.life.enqueue(items)
        self.oracle.acknowledge_items(items)

    def submit(self, numbers: Sequence[int], lanes: int = 1) -> None:
        """Queue from another process, and let this one take it up."""
        if self.producer is None:
            self.producer = self.life.joined()
        items = [make_item(number, lanes) for number in numbers]
        self.oracle.offer_items(items)
        self.producer.append(items)
        self.oracle.acknowledge_items(items)
        self.life.queue.refresh()

    def complete(self, limit: int = 1, outcome: Any = None) -> int:
        """Claim, record and retire; return how many."""
        return self.finish(self.life.claim(limit), outcome)

    def finish(self, claims: Sequence[Any], outcome: Any = None) -> int:
        """Record and retire."""
        records = [make_record(claim, outcome) for claim in claims]
        self.oracle.offer_records(records)
        self.life.record(records)
        self.oracle.acknowledge_records(records)
        self.life.retire(claims)
        return len(claims)

    def reopen(self) -> None:
        """Stop cleanly and start again."""
        self.life.close()
        self.life = self.life.again()


Step = Callable[[Bench, int], object]
OPERATIONS: dict[str, Step] = {
    "E": lambda bench, at: bench.enqueue([2 * at, 2 * at + 1]),
    "C": lambda bench, at: bench.complete(),
    "S": lambda bench, at: bench.life.sync_markers(),
    "R": lambda bench, at: bench.life.roll(),
    "G": lambda bench, at: bench.life.collect(),
    "O": lambda bench, at: bench.reopen(),
    "P": lambda bench, at: bench.submit([2 * at, 2 * at + 1]),
}
"""Enqueue two items, complete one, sync the markers, roll, collect, stop cleanly and start again; and have
another process enqueue two."""


def prove(
    disk: SimulatedDisk,
    oracle: Oracle,
    *,
    kind: Kind = WatchedSimulation,
    again: Callable[[SimulatedDisk, Oracle], None] | None = None,
    killed: bool = False,
    refused: bool = False,
) -> None:
    """Recover a store that a cut left. Raises `Broken` if it isn't whole, or doesn't stay so.

    `again` is called at each change that this recovery makes, for a second cut within it. What a kill left
    (`killed`) looks damaged to nobody; a disk that `refused` something may leave a segment that does.
    """
    try:
        _prove(disk, oracle, kind, again, killed=killed, refused=refused)
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"a cut left what fafo can't open or go on with: {error!r}") from error


def _prove(
    disk: SimulatedDisk,
    oracle: Oracle,
    kind: Kind,
    again: Callable[[SimulatedDisk, Oracle], None] | None,
    *,
    killed: bool,
    refused: bool,
) -> None:
    watched = kind(disk)
    if again is not None:
        watched.after = lambda call, path: again(watched, oracle)
    life = Life(watched)
    watched.after = lambda call, path: None
    report = life.report
    if (report.torn and not refused) or (report.damaged and killed):
        raise Broken(f"taken for damage: {report.findings}")
    if any(name.endswith(".seg") for name in watched.listdir(life.directory.quarantine)):
        raise Broken(f"a segment had its name before its header was durable: {report.findings}")
    oracle.check(life)
    _idempotent(watched)
    # What is served must be durable by now, and what comes after it must be readable by the life after this.
    served = oracle.copy()
    served.take_as_served(life)
    bench = Bench(watched, served, life)
    bench.enqueue([AFTERWARDS, AFTERWARDS + 1])
    bench.complete()
    served.check(Life(next(watched.survivors(2, random.Random(0)))))


def _idempotent(disk: SimulatedDisk) -> None:
    """A second recovery at once finds nothing to do, and leaves every byte as it is."""
    copy = disk.untouched()
    was = copy.fingerprint(unread)
    report = Life(copy).report
    if report.sealed or report.dropped_bytes or report.torn:
        raise Broken(f"recovery of what was recovered found {report}")
    if copy.fingerprint(unread) != was:
        raise Broken("recovery of what was recovered changed it")


class Cuts:
    """Cuts the power after every change of a disk, and proves each survivor that it hasn't seen before."""

    def __init__(self, limit: int, *, nested: int = 0, seed: int = 0, kind: Kind = WatchedSimulation) -> None:
        self.limit = limit
        """Survivors per cut."""
        self.nested = nested
        """Survivors per cut within the recovery of a survivor; 0 for no such cuts."""
        self.kind = kind
        self.cuts = 0
        self.proved = 0
        self._seed = seed
        self._seen: set[tuple[Any, ...]] = set()

    def cut(self, disk: SimulatedDisk, oracle: Oracle, *, nested: bool = False) -> None:
        """Prove every survivor of a cut at this moment, and what a kill leaves."""
        self.cuts += 1
        limit = self.nested if nested else self.limit
        if not nested:
            left = disk.killed()
            durable = next(left.survivors(2, random.Random(0)))
            looks = (left.fingerprint(unread), durable.fingerprint(unread))
            self._prove_once(left, oracle, looks, nested=nested)
        for survivor in disk.survivors(limit, random.Random(self._seed)):
            self._prove_once(survivor, oracle, (survivor.fingerprint(unread),), nested=nested)

    def _prove_once(
        self, left: SimulatedDisk, oracle: Oracle, looks: tuple[bytes, ...], *, nested: bool
    ) -> None:
        key = (looks, oracle.state())
        if key in self._seen:
            return
        self._seen.add(key)
        self.proved += 1
        deeper = self.nested and not nested
        again = (lambda disk, oracle: self.cut(disk, oracle, nested=True)) if deeper else None
        prove(left, oracle, kind=self.kind, again=again)


def traces(
    start: SimulatedDisk, length: int, cuts: Cuts, first: str = "", operations: str = "ECSRGO"
) -> Iterator[str]:
    """Run every trace of up to `length` operations that begins with `first`, with all cuts, and yield each.

    A trace isn't continued after an operation that changed nothing: without it, it is another trace.
    """
    for name in operations:
        trace = first + name
        if run(start, trace, cuts):
            yield trace
            if len(trace) < length:
                yield from traces(start, length, cuts, trace, operations)


def run(start: SimulatedDisk, trace: str, cuts: Cuts) -> bool:
    """Run a trace, with cuts in its last operation; return whether that operation changed anything."""
    bench = Bench(cuts.kind(start.untouched()))
    disk = bench.disk
    assert isinstance(disk, WatchedSimulation)
    for at, name in enumerate(trace[:-1]):
        OPERATIONS[name](bench, at)
    before = disk.fingerprint(unread), bench.oracle.state()
    calls = 0

    def after(call: str, path: Path) -> None:
        nonlocal calls
        calls += 1
        cuts.cut(disk, bench.oracle)

    disk.after = after
    try:
        OPERATIONS[trace[-1]](bench, len(trace) - 1)
        cuts.cut(disk, bench.oracle)
    except Broken as error:
        error.add_note(f"trace {trace}, call {calls} of its last operation")
        raise
    if trace[-1] == "O":
        # A life that has just begun remembers nothing, so a second one is the first.
        calls = not trace.endswith("OO") and len(trace) > 1
    return bool(calls) or (disk.fingerprint(unread), bench.oracle.state()) != before
