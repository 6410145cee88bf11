"""Long random traces on a simulated disk, through many lives that end by a kill or a power cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from fafo_run.item import Claim
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import Bench, Kind, prove
from tests.disk.simulated import SimulatedDisk
from tests.disk.watched import Killed, WatchedSimulation
from tests.log_nouns import failure

LANES = 3
_WEIGHTS = {
    "enqueue": 4, "submit": 3, "claim": 6, "finish": 8, "fail": 2, "release": 2, "late": 1,
    "sync": 3, "roll": 2, "collect": 2, "tick": 1, "reopen": 1,
}  # fmt: skip
"""How often a life does what."""


class Wanderer:
    """One store that lives through many ends. The seed says everything that happens to it."""

    def __init__(self, start: SimulatedDisk, seed: int, *, kind: Kind = WatchedSimulation) -> None:
        self.oracle = Oracle()
        self.ends = 0
        self._kind = kind
        self._chance = random.Random(seed)
        self._left = start
        self._disk: WatchedSimulation | None = None
        self._last = 0
        self._held: list[Claim] = []
        self._only_killed = True
        """No cut may have left a hole so far, which each later start reports again."""

    def live(self, steps: int, *, most_calls: int = 60) -> None:
        """Live one life of up to `steps` operations, which a cut may end at any call; prove what is left."""
        chance = self._chance
        calls = chance.randrange(1, most_calls)
        killed = chance.random() < 0.3
        disk = self._kind(self._left.killed())

        def after(call: str, path: Path) -> None:
            nonlocal calls
            calls -= 1
            if calls == 0:
                # Taken at this very call: what the dying code still does to the disk never happened.
                self._left = disk.killed() if killed else disk.survivor(chance)
                raise Killed

        disk.after = after
        try:
            bench = self._begin(disk)
            for _ in range(steps):
                self._step(bench)
        except Killed:
            pass
        else:
            self._left = disk.killed() if killed else disk.survivor(chance)
        disk.after = lambda call, path: None
        self.ends += 1
        self._only_killed &= killed
        prove(self._left.killed(), self.oracle, kind=self._kind, killed=self._only_killed)

    def finish(self) -> None:
        """Do everything that is left to do, stop cleanly, and look whether each item has its one record."""
        bench = Bench(self._left.killed(), self.oracle)
        self._offer_again(bench)
        while bench.complete(7):
            pass
        bench.reopen()
        self.oracle.check(bench.life)
        recorded = {one.identity for one in bench.life.records()}
        if bench.life.queue.depth() or recorded != set(self.oracle.items):
            raise Broken("not every item that was handed in has a record at the end")

    def _begin(self, disk: WatchedSimulation) -> Bench:
        self._held = []
        settings = {"segment_bytes": self._chance.choice((1, 5000, 6000, 1 << 20))}
        bench = Bench(disk, self.oracle, **settings)
        if self._chance.random() < 0.5:
            self._offer_again(bench)
        return bench

    def _offer_again(self, bench: Bench) -> None:
        """Queue what was handed in and isn't there, as a producer does that asks the store what it has."""
        waiting = {one.identity for one in bench.life.waiting()}
        missing = [
            one
            for identity, one in self.oracle.items.items()
            if identity not in waiting and identity not in bench.life.results
        ]
        if missing:
            bench.put(missing)

    def _step(self, bench: Bench) -> None:
        chance, life = self._chance, bench.life
        match chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]:
            case "enqueue":
                first, self._last = self._last, self._last + chance.randrange(1, 9)
                bench.enqueue(range(first, self._last), LANES)
            case "submit":
                first, self._last = self._last, self._last + chance.randrange(1, 5)
                bench.submit(range(first, self._last), LANES)
            case "claim":
                self._held += life.claim(chance.randrange(1, 6))
            case "finish":
                bench.finish(self._taken())
            case "fail":
                bench.finish(self._taken(), failure())
            case "release":
                life.release(self._taken())
            case "late":
                # Somebody whose lease had ended finishes after the one who took over.
                claims = self._taken()
                life.release(claims)
                bench.complete(4)
                bench.finish(claims)
            case "sync":
                life.sync_markers()
            case "roll":
                life.roll()
            case "collect":
                life.collect()
            case "tick":
                life.clock.now += chance.uniform(0, 90)
                life.release(life.queue.expired())
            case "reopen":
                self._held = []
                bench.reopen()

    def _taken(self) -> Sequence[Claim]:
        self._chance.shuffle(self._held)
        count = self._chance.randrange(0, len(self._held) + 1)
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def wander(
    start: SimulatedDisk, seed: int, *, lives: int = 5, steps: int = 12, kind: Kind = WatchedSimulation
) -> None:
    """Live a few lives and finish. Raises `Broken`, with the seed in its notes."""
    wanderer = Wanderer(start, seed, kind=kind)
    try:
        for _ in range(lives):
            wanderer.live(steps)
        wanderer.finish()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
