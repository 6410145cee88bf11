"""A store in several hands: two owners, an owner that is suspended, a slow reader, a clock that jumps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from fafo_run.log.appender import Appender
from fafo_run.log.fs import Disk
from fafo_run.log.locking import StoreBusy
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.disk.life import RUN, Life, fresh, make_item, make_record, repeatable
from tests.disk.oracle import Broken, Oracle
from tests.disk.proof import Bench
from tests.disk.simulated import SimulatedDisk
from tests.log_nouns import name_of

ROOT = Path(__file__).parents[2]

OWNER = """
import sys
from pathlib import Path
from fafo_run.log.fs import Disk
from tests.disk.life import Life, make_item, make_record
life = Life(Disk(), Path(sys.argv[1]), indexed=True)
for line in sys.stdin:
    number = int(line)
    life.enqueue([make_item(number)])
    claims = life.claim(1)
    life.record([make_record(claim) for claim in claims])
    life.retire(claims)
    print(number, flush=True)
life.close()
"""
READER = """
import sys
from pathlib import Path
from fafo_run.queue.reader import QueueReader
for item in QueueReader.open(Path(sys.argv[1])).items():
    print(item.key, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def child(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], line: object = "") -> str:
    assert process.stdin and process.stdout
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def refuses(path: Path) -> None:
    """A second owner is refused and leaves every byte as it is."""
    before = {file: file.read_bytes() for file in path.rglob("*.seg")}
    with pytest.raises(StoreBusy):
        Life(Disk(), path)
    assert {file: file.read_bytes() for file in path.rglob("*.seg")} == before


def holds(path: Path, numbers: int) -> None:
    life = Life(Disk(), path, indexed=True)
    found = life.records()
    assert sorted(one.identity for one in found) == sorted(name_of(number) for number in range(numbers))
    assert life.waiting() == [] and not life.report.damaged
    life.close()


@pytest.mark.parametrize("said", [None, b"", b'{"pid": 1, "started": 0, "boot_id": ""}', b"\xff\0"])
def test_two_owners(tmp_path: Path, said: bytes | None) -> None:
    """LOCK may say anything (the pid of a stranger), or be deleted: the lock is what holds."""
    path = tmp_path / "run"
    with child(OWNER, path) as owner:
        assert ask(owner, 0) == "0"
        if said is None:
            (path / "LOCK").unlink()
        else:
            (path / "LOCK").write_bytes(said)
        refuses(path)
        assert ask(owner, 1) == "1"
        owner.communicate()
        assert owner.returncode == 0
    holds(path, 2)


def test_two_owners_show_a_lock_that_isnt_taken(tmp_path: Path) -> None:
    with child(OWNER, tmp_path / "run") as owner:
        assert ask(owner, 0) == "0"
        with patch.object(Disk, "lock", lambda *_, **__: True), pytest.raises(pytest.fail.Exception):
            refuses(tmp_path / "run")


@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL])
def test_an_owner_that_is_suspended(tmp_path: Path, ending: signal.Signals) -> None:
    path = tmp_path / "run"
    with child(OWNER, path) as owner:
        assert ask(owner, 0) == "0"
        owner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
        refuses(path)
        owner.send_signal(ending)
        if ending == signal.SIGCONT:
            assert ask(owner, 1) == "1"
        owner.communicate()
    holds(path, 2 if ending == signal.SIGCONT else 1)


def slow_reader(path: Path) -> None:
    bench = Bench(Disk(), life=Life(Disk(), path))
    bench.enqueue(range(4))
    bench.life.roll()
    with child(READER, path) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == "k0é"
        bench.complete(4)
        assert bench.life.collect() == 0, "somebody reads it"
        # The marker of what it has read ahead, or not, decides what it sees; all that it sees is whole.
        rest = [ask(reader) for _ in range(3)]
        assert {*rest} <= {"k1é", "k2é", "k3é", ""}
        reader.communicate()
        assert reader.returncode == 0
    assert bench.life.collect() == 1
    bench.life.close()


def test_a_collector_against_a_slow_reader(tmp_path: Path) -> None:
    slow_reader(tmp_path / "run")


def test_a_slow_reader_shows_a_collector_that_asks_nobody(tmp_path: Path) -> None:
    with patch.object(Disk, "lock", lambda *_, **__: True), pytest.raises(AssertionError):
        slow_reader(tmp_path / "run")


# One process, on a simulated disk.


@pytest.fixture
def start() -> Iterator[SimulatedDisk]:
    with repeatable():
        yield fresh()


def jumps(start: SimulatedDisk, *, leases: bool) -> None:
    """Live three lives, between and within which the clock is set an hour back and forward."""
    disk, oracle = start.untouched(), Oracle()
    for number, offset in enumerate((0, -3600, 3600)):
        with (
            patch("time.time", lambda offset=offset: 1_700_000_000.0 + offset),
            patch.dict(Appender.__init__.__kwdefaults__, now=lambda offset=offset: 10**9 * (10**9 + offset)),
        ):
            bench = Bench(disk, oracle)
            bench.enqueue([4 * number, 4 * number + 1])
            held = bench.life.claim(1)
            if not leases:
                bench.life.clock.now += 3600
        assert bench.life.queue.expired() == [], "a lease has ended because somebody set the clock"
        assert held[0].item.key == f"k{4 * number}é", "the oldest comes first, whatever the clock says"
        bench.finish(held)
        bench.complete(9)
        oracle.check(bench.life)
        bench.life.drop()
        disk = disk.killed()
    assert oracle.recorded == set(oracle.items)


def test_a_clock_that_is_set_back_and_forward_an_hour(start: SimulatedDisk) -> None:
    jumps(start, leases=True)


def test_a_clock_shows_leases_that_follow_it(start: SimulatedDisk) -> None:
    with pytest.raises(AssertionError):
        jumps(start, leases=False)


def two_finish(start: SimulatedDisk) -> None:
    bench = Bench(start.untouched())
    bench.enqueue([0, 1])
    first = bench.life.claim(2)
    bench.life.clock.now += 61
    assert bench.life.queue.expired() == first
    bench.life.release(first)
    second = bench.life.claim(2)
    assert [claim.item for claim in second] == [claim.item for claim in first]
    records = [make_record(claim) for claim in second]
    bench.oracle.offer_records(records)
    assert bench.life.record(records) == 0
    assert bench.life.record([make_record(claim) for claim in first]) == 2, "these are too late"
    bench.oracle.acknowledge_records(records)
    bench.life.retire(second)
    bench.life.retire(first)
    bench.oracle.check(bench.life)
    bench.life.drop()
    bench.oracle.check(Life(bench.disk.killed()))


def test_two_finish_one_claim(start: SimulatedDisk) -> None:
    two_finish(start)


def test_two_finishers_show_a_second_output_that_is_taken(start: SimulatedDisk) -> None:
    blind = patch.object(Results, "places", lambda self, identities: {})
    with blind, pytest.raises(AssertionError):
        two_finish(start)


def test_the_same_item_twice_is_done_once(start: SimulatedDisk) -> None:
    bench = Bench(start.untouched())
    bench.enqueue([0])
    bench.complete()
    bench.life.enqueue([make_item(0)])
    life = Life(bench.disk.killed())
    bench.oracle.check(life)
    assert life.retired == 1 and life.directory.path == RUN
    with patch.object(Queue, "settle", lambda *_: 0), pytest.raises(Broken):
        bench.oracle.check(Life(bench.disk.killed()))
