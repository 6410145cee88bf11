"""kill -9 of a writer, again and again: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, name_of, record

ROOT = Path(__file__).parents[2]
TOTAL = 3000
CYCLES = 15


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
