"""Kills a worker on a store again and again, and holds the rule after each kill. It was told what was done.

A process of its own, since it forks: `python -m tests.crash.kill_server FOLDER …` prints JSON. The rule is
that of `tests/disk/oracle.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fafo_build.errors import StoreError
from fafo_run.item import Claim
from fafo_run.log.fs import Disk
from tests.crash.forking import LANES, Say, Told, Unkilled, ended, forked
from tests.disk.life import Life, key_number, make_item, make_record
from tests.disk.oracle import Broken
from tests.disk.proof import Bench

CYCLES_PER_STORE = 20
"""A store grows, and is looked through after every kill."""
SEGMENT_BYTES = 1 << 13


def work(disk: Disk, path: Path, oracle: Told, say: Say, seed: int, fault: str) -> None:
    """Recover, look whether all is there, and go on until somebody ends it."""
    chance = random.Random(seed)
    life = Life(disk, path, indexed=chance.random() < 0.3, segment_bytes=SEGMENT_BYTES)
    if life.report.damaged:
        # Only a power cut may leave a hole, and no file system that is known here does.
        raise Broken(f"taken for damage: {life.report.findings}")
    oracle.check(life)
    say("open", [])
    last = 1 + max((key_number(one) for one in oracle.items.values()), default=0)
    held: list[Claim] = []

    def enqueue() -> None:
        nonlocal last
        numbers = list(range(last, last + chance.randrange(1, 20)))
        last = numbers[-1] + 1
        say("offer", numbers)
        if fault == "early":
            say("queued", numbers)
        life.enqueue([make_item(number, LANES) for number in numbers])
        say("queued", numbers)

    def finish() -> None:
        chance.shuffle(held)
        count = chance.randrange(0, len(held) + 1)
        claims = held[:count]
        del held[:count]
        if fault == "markers":
            life.retire(claims)
            say("between", [])
        life.record([make_record(claim) for claim in claims])
        say("recorded", [key_number(claim.item) for claim in claims])
        life.retire(claims)

    while True:
        does: Callable[[], Any] = chance.choice(
            [enqueue, enqueue, finish, finish, finish, life.sync_markers, life.collect]
        )
        if chance.random() < 0.4:
            held += life.claim(chance.randrange(1, 16))
        if chance.random() < 0.03:
            life.roll()
        does()


class Loop:
    """Kills a worker again and again, at a moment that the seed says: after some lines, or some time."""

    disk: type[Disk] = Unkilled
    believed_to_the_end = True
    """Whether what a worker said after the blow counts: it may have been on its way before."""

    def __init__(self, folder: Path, seed: int, fault: str) -> None:
        self.folder = folder
        self.fault = fault
        self.chance = random.Random(seed)
        self.killed = 0
        self.early = 0
        """Kills before the worker had its store open: in recovery."""
        self.acknowledged = 0

    def run(self, cycles: int) -> None:
        for first in range(0, cycles, CYCLES_PER_STORE):
            path = self.folder / f"run-{first}"
            oracle = Told()
            for _ in range(min(CYCLES_PER_STORE, cycles - first)):
                self.cycle(path, oracle)
            self.finish(path, oracle)
            shutil.rmtree(path)

    def cycle(self, path: Path, oracle: Told) -> None:
        reading, writing = os.pipe()
        seed = self.chance.randrange(1 << 30)

        def say(word: str, numbers: Sequence[int]) -> None:
            os.write(writing, " ".join([word, *map(str, numbers)]).encode() + b"\n")

        pid = forked(lambda: work(self.disk(), path, oracle, say, seed, self.fault))
        os.close(writing)
        lines = self.chance.choice([0, 1, 2, 5, 20, 60, 100])
        until = time.monotonic() + (self.chance.uniform(0, 0.02) if lines == 0 else 20)
        said = b""
        alive = True
        while said.count(b"\n") < lines or lines == 0:
            self.meanwhile(path)
            left = until - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                break
            part = os.read(reading, 1 << 16)
            if not part:
                alive = False
                break
            said += part
        heard = said.count(b"\n")
        self.strike(path, pid)
        code = ended(pid)
        while part := os.read(reading, 1 << 16):
            said += part
        os.close(reading)
        if not alive or not self.expected(code):
            raise Broken(f"a worker ended by itself, with {code}")
        told = said.decode().split("\n")[:-1]
        if not self.believed_to_the_end:
            told = told[:heard] + [line for line in told[heard:] if line.startswith("offer")]
        for line in told:
            oracle.hear(line)
        self.killed += 1
        self.early += "open" not in told
        self.acknowledged += sum(len(line.split()) - 1 for line in told if not line.startswith("offer"))

    def meanwhile(self, path: Path) -> None:
        """Something else may happen while the worker works."""

    def strike(self, path: Path, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def expected(self, code: int) -> bool:
        """Return whether a worker may end so."""
        return code == -signal.SIGKILL

    def finish(self, path: Path, oracle: Told) -> None:
        """Do what is left, stop cleanly, and look whether each item has its one record, in the index too."""
        disk = self.disk()
        bench = Bench(disk, oracle, Life(disk, path, indexed=True))
        oracle.check(bench.life)
        while bench.complete(50):
            pass
        bench.life.close()
        life = Life(disk, path, indexed=True)
        oracle.check(life)
        check = life.results.duplicates()
        if life.queue.depth() or check.identities or check.damaged or check.undecodable:
            raise Broken(f"at the end: {life.queue.depth()} wait, {check}")
        life.drop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=["", "early", "markers"], default="")
    asked = parser.parse_args()
    loop = Loop(asked.folder, asked.seed, asked.fault)
    broken = ""
    try:
        loop.run(asked.cycles)
    except (Broken, StoreError) as error:
        broken = f"seed {asked.seed}, after {loop.killed} kills: {error}"
    told = {"broken": broken, "killed": loop.killed, "early": loop.early, "acknowledged": loop.acknowledged}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
