"""LMDB in several hands: growth, other processes, forks, dead readers, and when it is opened at all."""

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import recover
from fafo_run.results import trust
from fafo_run.results.arrays import ArrayIndex
from fafo_run.results.environment import Environment, UnusableIndexError
from fafo_run.results.index import Index, build
from fafo_run.results.place import OUTPUT_RANK, Place, in_order, make_rows
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table
from tests.log_nouns import name_of, record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    """A run of 20 records that stopped cleanly."""
    path = tmp_path / "run"
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        results.append([record(number) for number in range(20)])
        results.close(clean=True)
    return path


def table_of(number: int, names: range) -> Table:
    identities = b"".join(map(name_of, names))
    at = np.arange(len(names), dtype="u8") * 8
    rows = make_rows(number, identities, at, np.full(len(names), OUTPUT_RANK, "u4"))
    return Table.of(bytes([number]) * 16, number, 9, Tally(), in_order(rows))


def unjudged(identity, place):
    return Tally()


class Child:
    """A process that runs Python lines and answers each."""

    def __init__(self, prelude: str, *arguments: str) -> None:
        loop = "\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import sys, os\n" + prelude + loop, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def child():
    children: list[Child] = []

    def start(prelude: str, *arguments: str) -> Child:
        children.append(Child(prelude, *arguments))
        return children[-1]

    yield start
    for one in children:
        one.kill()


READER = """
from pathlib import Path
from fafo_run.results.index import Index
from tests.log_nouns import name_of
index = Index.open(Path(sys.argv[1]), "s", write=False, map_size=1 << 16)
"""


def test_a_reader_in_another_process_sees_what_outgrew_its_map(tmp_path, child):
    path = tmp_path / "index"
    path.mkdir()
    build(path, "s", [table_of(1, range(10))], unjudged, map_size=1 << 16)
    other = child(READER, str(path))
    assert other.ask("len(index.find(map(name_of, range(10))))") == "10"
    index = Index.open(path, "s", write=True, map_size=1 << 16)
    index.merge([table_of(2, range(10, 6000))], unjudged)
    assert (path / "data.mdb").stat().st_size > 1 << 17
    assert other.ask("len(index.find(map(name_of, range(6000))))") == "6000"
    assert other.ask("len(index.merged())") == "2"
    index.close()


def test_the_place_of_a_reader_that_died_is_freed(tmp_path, child):
    path = tmp_path / "index"
    path.mkdir()
    build(path, "s", [table_of(1, range(10))], unjudged)
    other = child(READER + "held = index._environment._lmdb.begin()\n", str(path))
    other.ask("index.version")
    index = Index.open(path, "s", write=True)
    assert index._environment._lmdb.readers().count("\n") > 1
    index.close()
    other.kill()
    index = Index.open(path, "s", write=True)
    assert index._environment._lmdb.readers().count("\n") <= 1
    index.close()


def test_one_process_shares_what_it_has_open(path):
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        reader = open_reader(path)
        assert isinstance(reader._catalog.index, Index), "the reader uses the index too"
        status = (path / "index" / "data.mdb").stat()
        inode = (status.st_dev, status.st_ino)
        assert inode in Environment._open
        results.append([record(30)])
        results.seal()
        assert reader.find(name_of(3)) == record(3)
        reader.close()
        reader.close()
        assert results.find(name_of(30)) == record(30) and results.find(name_of(4)) == record(4)
        reader = open_reader(path)
        results.close(clean=True)
        assert reader.find(name_of(30)) == record(30)
        reader.close()
    assert inode not in Environment._open


def test_what_nobody_holds_any_more_is_closed(path):
    """Also where nobody closed it."""
    open_reader(path)
    gc.collect()
    with RunDirectory.own(path) as directory:
        Index.open(directory.index, directory.store, write=True).close()


def test_a_writer_makes_an_index_of_its_own_where_the_process_only_reads(path):
    reader = open_reader(path)
    with RunDirectory.own(path) as directory:
        with pytest.raises(UnusableIndexError, match="to read it"):
            Index.open(directory.index, directory.store, write=True)
        results = Results(directory)
        assert results.append([record(3), record(40)]) == 1
        results.close(clean=True)
    assert reader.find(name_of(3)) == record(3)
    reader.close()


def test_a_forked_child_reads_without_and_writes_nothing(path):
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        reader = open_reader(path)
        before = (directory.index / "data.mdb").stat().st_ino
        child = os.fork()
        if not child:
            code = 1
            try:
                assert reader.find(name_of(3)) == record(3)
                assert isinstance(reader._catalog.index, ArrayIndex)
                reader.close()
                for call in (lambda: results.append([record(50)]), results.reindex, results.seal):
                    with pytest.raises(RuntimeError, match="fork"):
                        call()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert results.append([record(50), record(3)]) == 1
        assert reader.find(name_of(4)) == record(4)
        assert (directory.index / "data.mdb").stat().st_ino == before
        reader.close()
        results.close(clean=True)


def test_whoever_opens_while_the_index_is_built_anew_sees_all(path):
    """Never a part of it, and no reader holds the builder up."""
    counts: list[str] = []
    program = """
from pathlib import Path
from fafo_run.results.reader import open_reader
path = Path(sys.argv[1])
while not Path(sys.argv[2]).exists():
    reader = open_reader(path)
    print(reader.summary().total.outputs, sum(1 for _ in reader.effective()), flush=True)
    reader.close()
"""
    stop = path.parent / "stop"
    with RunDirectory.own(path) as directory:
        directory.mark_running()
        results = Results(directory)
        looker = subprocess.Popen(
            [sys.executable, "-c", "import sys\n" + program, str(path), str(stop)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        try:
            assert looker.stdout is not None
            for _ in range(30):
                results.reindex()
                counts.append(looker.stdout.readline())
            stop.touch()
            rest = looker.communicate(timeout=60)[0]
        finally:
            looker.kill()
        assert looker.returncode == 0
        assert set(counts) | set(rest.splitlines(keepends=True)) == {"20 20\n"}
        assert results.summary().total.outputs == 20
        results.close(clean=True)


# ---- when it is opened at all


def forge(path: Path) -> None:
    """Let the index say of an item what no segment does: who trusts the index says so too."""
    with RunDirectory.own(path) as directory:
        index = Index.open(directory.index, directory.store, write=True)
        ((uuid, was),) = index.merged().items()
        made = table_of(1, range(99, 100))
        index.merge([Table.of(uuid, 1, was.size, was.tally, made.part())], unjudged)
        index.close()


def left_running(path: Path, boot: str | None) -> None:
    with RunDirectory.own(path) as directory:
        directory.mark_running()
    if boot is not None:
        said = json.loads((path / "RUNNING").read_text()) | {"boot_id": boot}
        (path / "RUNNING").write_text(json.dumps(said))


@pytest.fixture
def probes(monkeypatch):
    """Count the children that try the index."""
    tried: list[Path] = []

    def probe(path: Path) -> bool:
        tried.append(path)
        return real(path)

    real = trust.probe
    monkeypatch.setattr(trust, "probe", probe)
    return tried


@pytest.mark.parametrize(
    ("boot", "trusted", "tried"),
    [("stopped", True, 0), (None, True, 1), ("another", False, 0), ("", False, 0)],
)
@pytest.mark.parametrize("write", [False, True])
def test_whether_the_index_is_trusted(path, probes, boot, trusted, tried, write):
    """After a clean stop; after a kill, when a child has read it; never when another boot left it."""
    forge(path)
    if boot != "stopped":
        left_running(path, boot)
    if write:
        with RunDirectory.own(path) as directory:
            recover(directory)
            results = Results(directory)
            assert (name_of(99) in results) == trusted
            assert results.find(name_of(99)) is None and results.find(name_of(3)) == record(3)
            results.close(clean=True)
    else:
        reader = open_reader(path)
        assert (name_of(99) in reader) == trusted
        assert reader.find(name_of(99)) is None and reader.find(name_of(3)) == record(3)
        reader.close()
    assert len(probes) == tried


def test_beside_a_run_that_works_nobody_probes(path, probes, child):
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        directory.mark_running()
        results.append([record(60)])
        reader = open_reader(path)
        assert reader.find(name_of(60)) == record(60) and isinstance(reader._catalog.index, Index)
        reader.close()
        assert probes == []
        results.close(clean=True)


def test_beside_a_run_that_only_begins_a_child_tries(path, probes):
    """RUNNING is still of the run that was killed, and so may the index be."""
    left_running(path, None)
    said = json.loads((path / "RUNNING").read_text()) | {"pid": 1}
    (path / "RUNNING").write_text(json.dumps(said))
    with RunDirectory.own(path) as directory:
        os.truncate(directory.index / "data.mdb", 8192)
        reader = open_reader(path)
        assert reader.find(name_of(3)) == record(3) and not reader.is_indexed
        reader.close()
    assert len(probes) == 1


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("size", [0, 4096, 8192, 12_288])
def test_a_short_index_beside_a_dead_run_kills_nobody(path, write, size):
    """LMDB maps the file: a page behind its end is a SIGBUS, and no exception."""
    left_running(path, None)
    os.truncate(path / "index" / "data.mdb", size)
    program = (
        "from fafo_run.log.directory import RunDirectory\n"
        "from fafo_run.results.results import Results\n"
        "from fafo_run.results.reader import open_reader\n"
        "from pathlib import Path\n"
        "path = Path(sys.argv[1])\n"
        "directory = RunDirectory.own(path) if sys.argv[2] else None\n"
        "results = Results(directory) if directory else open_reader(path)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + program + "print(results.summary().total.outputs)",
         str(path), "write" if write else ""],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "20\n"), done.stderr


def test_the_probe_dies_of_what_would_kill_us(path):
    """Seen once to be no mere exception: so it has to be a process of its own."""
    size = (path / "index" / "data.mdb").stat().st_size
    os.truncate(path / "index" / "data.mdb", 8192)
    program = (
        "import sys, lmdb\n"
        "with lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=8) as env:\n"
        "    with env.begin() as txn:\n"
        "        env.open_db(b'entries', txn=txn, create=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path / "index")], check=False)
    assert size > 8192 and done.returncode == -signal.SIGBUS
    assert not trust.probe(path / "index")


def test_a_merge_that_fails_leaves_the_index_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "index"
    path.mkdir()
    build(path, "s", [table_of(1, range(10))], unjudged)
    index = Index.open(path, "s", write=True)

    def broken(identity, place):
        raise lmdb.DiskError("no room")

    with pytest.raises(Exception, match="index can't be written"):
        index.merge([table_of(2, range(5, 15))], broken)
    assert index.find(map(name_of, range(15))).keys() == {name_of(number) for number in range(10)}
    assert index.earlier(name_of(5)) == [] and len(index.merged()) == 1
    index.merge([table_of(2, range(5, 15))], unjudged)
    assert index.find([name_of(5)]) == {name_of(5): Place(1, 40, OUTPUT_RANK)}, (
        "of equal ones the first counts"
    )
    assert index.earlier(name_of(5)) == [Place(2, 0, OUTPUT_RANK)] and len(index.merged()) == 2
    index.close()
