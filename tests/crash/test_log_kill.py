"""kill -9 of a writer, again and again: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, name_of, record

ROOT = Path(__file__).parents[2]
TOTAL = 3000
CYCLES = 8


def child(path: Path, *, lines: int | None) -> list[str]:
    """Run the writer, kill it after it said `lines` lines, and return all it said, whole lines only."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.log_child", str(path), str(TOTAL)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout
    said = []
    for line in process.stdout:
        said.append(line)
        if len(said) == lines:
            process.kill()
    process.wait()
    process.stdout.close()
    if lines is None:
        assert process.returncode == 0
    return [line.decode().strip() for line in said if line.endswith(b"\n")]


def numbers(said: list[str], word: str) -> set[int]:
    return {int(line.split()[1]) for line in said if line.startswith(word + " ")}


def test_kill_9_in_a_loop(tmp_path):
    chance = random.Random(7)
    queued: set[int] = set()
    recorded: set[int] = set()
    for _ in range(CYCLES):
        said = child(tmp_path / "run", lines=chance.randrange(1, 350))
        assert not numbers(said, "damaged")
        queued |= numbers(said, "queued")
        recorded |= numbers(said, "recorded")
        with RunDirectory.own(tmp_path / "run") as directory:
            recover(directory)
            queue, results = Queue(directory), Results(directory)
            waiting = queue.identities()
            assert all(results.find(name_of(number)) is not None for number in recorded)
            assert all(name_of(number) in waiting or results.has_output(name_of(number)) for number in queued)
            assert results.duplicates().identities == ()
            queue.close(clean=False)
            results.close()
    said = child(tmp_path / "run", lines=None)
    assert said[-1] == "finished 1"
    with RunDirectory.own(tmp_path / "run") as directory:
        assert directory.stopped_cleanly()
        assert recover(directory, thorough=True).findings == ()
        queue, results = Queue(directory), Results(directory)
        check = results.duplicates()
        assert (check.outputs, check.identities, check.damaged, queue.depth()) == (TOTAL, (), (), 0)
        assert results.find(name_of(TOTAL - 1)) == record(TOTAL - 1, lane=512)
        assert list(directory.queue.iterdir()) == []
        queue.close(clean=True)
        results.close()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: a kill leaves the page cache alone, so no disk is needed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def kills(folder: Path, server: str, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run a server; return what it found, and what its workers said when they ended by themselves."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.crash.{server}", str(folder), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def check_kills(folder: Path, cycles: int, seed: int) -> None:
    told, said = kills(folder, "kill_server", "--cycles", str(cycles), "--seed", str(seed))
    assert told["broken"] == "", said
    assert told["killed"] == cycles
    assert told["early"] > 0, "some are killed while they recover"
    assert told["acknowledged"] > 20 * cycles


def test_thirty_kills(memory: Path) -> None:
    check_kills(memory, 30, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_six_hundred_kills(memory: Path, seed: int) -> None:
    check_kills(memory, 100, seed)


@pytest.mark.parametrize("fault", ["early", "markers"])
def test_kills_show_a_fault(memory: Path, fault: str) -> None:
    """Acknowledged before it is written; marked as done before the record is."""
    told, said = kills(memory, "kill_server", "--cycles", "100", "--fault", fault)
    assert told["broken"] != "" and "lost item" in said


@pytest.mark.slow
def test_killed_before_every_change_of_a_life_and_of_its_recovery(memory: Path) -> None:
    told, _ = kills(memory, "call_server")
    assert told["life"] > 100 and told["recovery"] > 100


FULL = """
import resource, signal, sys
from pathlib import Path
from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import DiskFull
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RunDirectory.own(Path(sys.argv[1])) as directory:
    recover(directory)
    queue, results = Queue(directory), Results(directory)
    directory.mark_running()
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    for number in range(1000):
        for append, one in ((results.append, record), (queue.append, item)):
            try:
                append([one(number), one(number + 1000)])
            except DiskFull as error:
                print(error.render())
                sys.exit(3)
        print("acknowledged", number, flush=True)
"""


def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path):
    for limit in (20_000, 20_001, 20_077):
        path = tmp_path / str(limit)
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(path), str(limit)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3 and "no room to write" in done.stdout and "cure:" in done.stdout
        acknowledged = numbers(done.stdout.splitlines(), "acknowledged")
        assert len(acknowledged) > 10
        with RunDirectory.own(path) as directory:
            report = recover(directory)
            assert report.dropped_bytes == 0 and report.findings == ()
            queue, results = Queue(directory), Results(directory)
            assert all(results.has_output(name_of(number)) for number in acknowledged)
            assert {name_of(number) for number in acknowledged} <= queue.identities()
            queue.append([item(5000)])
            assert results.append([record(5000)]) == 0
            queue.close(clean=False)
            results.close()


NO_ROOM = """
import resource, sys
from pathlib import Path
from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import DiskFull
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    RunDirectory.own(Path(sys.argv[1]))
except DiskFull as error:
    print(error.render())
    sys.exit(3)
"""


def test_no_room_at_the_very_start(tmp_path):
    for path in (tmp_path / "runs" / "main",) * 2:
        done = subprocess.run(
            [sys.executable, "-c", NO_ROOM, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 3 and "no room to write" in done.stdout and "cure:" in done.stdout
    with RunDirectory.own(path) as directory:
        assert recover(directory).findings == ()


GONE = """
import shutil, sys
from pathlib import Path
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import StoreGone
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, record
with RunDirectory.own(Path(sys.argv[1])) as directory:
    directory.mark_running()
    queue, results = Queue(directory), Results(directory)
    queue.append([item(1), item(2)])
    results.append([record(1)])
    queue.retire(queue.claim(1))
    shutil.rmtree(directory.path)
    for write in (
        lambda: queue.append([item(3, lane=9)]) if sys.argv[2] == "new" else queue.append([item(3)]),
        lambda: results.append([record(2)]),
        queue.sync_markers,
        queue.collect,
        lambda: directory.write_progress({}),
        directory.mark_stopped,
    ):
        try:
            write()
        except StoreGone as error:
            print(error.render())
        else:
            sys.exit(1)
    queue.close(clean=True)
    results.close(clean=True)
"""


def test_the_folder_is_deleted_under_a_run(tmp_path):
    for segment in ("new", "open"):
        done = subprocess.run(
            [sys.executable, "-c", GONE, str(tmp_path / "main"), segment],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("the run's folder is gone") == done.stdout.count("cure:") == 6
        assert not (tmp_path / "main").exists()
