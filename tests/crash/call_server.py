"""Kills a scripted life right before each of its changes, and the recovery of what is left likewise.

A process of its own, since it forks: `python -m tests.crash.call_server FOLDER` prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fafo_run.item import Claim
from fafo_run.log.fs import Disk
from tests.crash.forking import LANES, FastSelfKilling, Told, Unkilled, ended, forked
from tests.disk.life import Life, key_number
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import OPERATIONS, Bench


def at_every_call(folder: Path) -> dict[str, int]:
    """Kill a scripted life right before each of its changes in turn, then recovery of that likewise.

    Return how many kills there were of each.
    """
    kills = {"life": 0, "recovery": 0}
    chance = random.Random(5)
    for at in range(10_000):
        path = folder / f"life-{at}"
        path.mkdir()
        code, oracle = scripted(path, at)
        if code == 0:
            break
        kills["life"] += 1
        for within in range(10_000):
            copy = Path(shutil.copytree(path, folder / "copy"))
            died = killed_at(copy, within)
            look(copy, oracle)
            shutil.rmtree(copy)
            if not died:
                break
            kills["recovery"] += 1
            if chance.random() < 0.7:
                break  # Not every recovery at every call: they are much alike.
        look(path, oracle)
        shutil.rmtree(path)
    return kills


def scripted(path: Path, at: int) -> tuple[int, Oracle]:
    """Run a life of every operation that is killed before its change number `at`."""
    reading, writing = os.pipe()

    def does() -> None:
        disk = FastSelfKilling()
        disk.at = at
        bench = Saying(disk, path, writing)
        for number, name in enumerate("EECRCSGOECCRG"):
            OPERATIONS[name](bench, number)
        bench.life.close()

    pid = forked(does)
    os.close(writing)
    said = b""
    while part := os.read(reading, 1 << 16):
        said += part
    os.close(reading)
    code = ended(pid)
    if code not in (0, -signal.SIGKILL):
        raise Broken(f"a life ended with {code}")
    oracle = Told()
    for line in said.decode().split("\n")[:-1]:
        oracle.hear(line)
    return code, oracle


class Saying(Bench):
    """A bench that writes down what it offers and what was acknowledged."""

    def __init__(self, disk: Disk, path: Path, fd: int) -> None:
        self.fd = fd
        super().__init__(disk, path=path)

    def say(self, word: str, numbers: Sequence[int]) -> None:
        os.write(self.fd, " ".join([word, *map(str, numbers)]).encode() + b"\n")

    def enqueue(self, numbers: Sequence[int], lanes: int = LANES) -> None:
        self.say("offer", numbers)
        super().enqueue(numbers, lanes)
        self.say("queued", numbers)

    def finish(self, claims: Sequence[Claim], outcome: Any = None) -> int:
        count = super().finish(claims, outcome)
        self.say("recorded", [key_number(claim.item) for claim in claims])
        return count


def killed_at(path: Path, at: int) -> bool:
    """Recover, and be killed before change number `at`; return whether there was one."""
    disk = FastSelfKilling()
    disk.at = at
    code = ended(forked(lambda: Life(disk, path)))
    if code not in (0, -signal.SIGKILL):
        raise Broken(f"recovery ended with {code}")
    return code != 0


def look(path: Path, oracle: Oracle) -> None:
    """Recover and hold the rule."""
    life = Life(Unkilled(), path)
    if life.report.damaged:
        raise Broken(f"taken for damage: {life.report.findings}")
    oracle.check(life)
    life.drop()


if __name__ == "__main__":
    print(json.dumps(at_every_call(Path(sys.argv[1]))))
