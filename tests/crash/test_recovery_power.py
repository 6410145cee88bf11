"""The power goes at each call within recovery: the next one comes to the same segments, and loses nothing.

On a simulated disk, that keeps any mixture of what wasn't synced.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fafo_run.log.actions import Cut, PutAside
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, File
from fafo_run.log.recovery import to_do
from tests.damaged_stores import DAMAGES, make
from tests.disk.simulated import SimulatedDisk
from tests.disk.watched import WatchedSimulation

RUN = Path("/run")
SURVIVORS = 6
STEPS = [
    name for name in DAMAGES
    if name not in {"in the wrong folder", "another version", "FORMAT gone"} and "index" not in name
]  # fmt: skip


def loaded(path: Path) -> SimulatedDisk:
    """Return a disk that holds a store, all of it durable."""
    disk = SimulatedDisk()
    disk.mkdir(RUN)
    for found in sorted(path.rglob("*")):
        place = RUN / found.relative_to(path)
        if found.is_dir():
            disk.mkdir(place)
        elif found.parent.name != "index":
            fd = disk.open(place, os.O_RDWR | os.O_CREAT)
            disk.pwrite(fd, memoryview(found.read_bytes()), 0)
            disk.close(fd)
    return disk.untouched()


def recover(disk: Disk) -> None:
    with RunDirectory.own(RUN, disk, force=True) as directory:
        for action in to_do(directory, thorough=True):
            action.apply(directory)


def held(disk: SimulatedDisk, part: str) -> dict[str, bytes]:
    return {path.name: disk.read(path) for path, _ in disk.files() if path.parent == RUN / part}


class Cutting(WatchedSimulation):
    """Keeps what a cut before each change may leave."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.left: list[tuple[str, SimulatedDisk]] = []
        self.chance = random.Random(5)

    def before(self, call, path):
        if path.name != "LOCK":
            self.left += [(f"{call} {path}", disk) for disk in self.survivors(SURVIVORS, self.chance)]


def cut_at_each_call(path: Path, name: str) -> int:
    make(path)
    DAMAGES[name].do(path)
    whole = Cutting(loaded(path))
    recover(whole)
    after = whole.untouched()
    for where, disk in whole.left:
        recover(disk)
        for part in ("queue", "results"):
            assert held(disk, part) == held(after, part), f"cut before {where}"
        kept = held(disk, "quarantine")
        assert held(after, "quarantine").items() <= kept.items(), f"cut before {where}"
        for of in kept:
            reason = of.replace(".bin", ".reason") if of.endswith(".bin") else f"{of}.reason"
            assert of.endswith((".reason", ".tmp")) or reason in kept, f"cut before {where}: {of}"
    return len(whole.left)


@pytest.mark.parametrize("name", STEPS)
def test_the_power_goes_at_each_call_of_a_step(tmp_path, name):
    assert cut_at_each_call(tmp_path / "run", name) > 0


def cut_without_a_sync(self: Cut, directory: RunDirectory) -> None:
    """Leaves the copy to the kernel."""
    file = File(directory.disk, directory.quarantine / "late.bin", write=True, create=True)
    file.write_at(0, b"x" * self.length)
    File(directory.disk, self.path, write=True).truncate(self.offset)


def moved_without_a_sync(self: PutAside, directory: RunDirectory) -> None:
    """Says why, and leaves it to the kernel."""
    aside = directory.quarantine / "queue-00000007.seg"
    File(directory.disk, aside.with_name(aside.name + ".reason"), write=True, create=True)
    directory.disk.rename(self.path, aside)


@pytest.mark.parametrize(
    ("action", "fault", "name"),
    [(Cut, cut_without_a_sync, "a killed run"), (PutAside, moved_without_a_sync, "no header")],
)
def test_power_cuts_show_a_copy_that_isnt_synced(tmp_path, monkeypatch, action, fault, name):
    monkeypatch.setattr(action, "apply", fault)
    with pytest.raises(AssertionError, match="cut before"):
        cut_at_each_call(tmp_path / "run", name)
