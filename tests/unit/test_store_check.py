"""`fafo store check` finds everything and changes nothing; `repair` does what its dry run says, once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_build.errors import StoreError
from fafo_build.project.declaration import Run
from fafo_run.log.actions import Action, Keep, Level, Why
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Kind
from fafo_run.log.fs import Disk
from fafo_run.log.locking import StoreBusy, is_held
from fafo_run.queue.writer import QueueWriter
from fafo_run.run.check import check
from fafo_run.run.compaction import compact
from fafo_run.run.repair import plan, repair
from fafo_run.run.store import RunReader, RunStore, reindex
from fafo_run.run.submit import appending
from tests.damaged_stores import DAMAGES, entry_of, make, spoil, tree
from tests.disk.life import make_record
from tests.helpers import REPO
from tests.log_nouns import item, look, name_of

REFUSED = {"in the wrong folder", "another version"}


@pytest.fixture
def path(tmp_path):
    return make(tmp_path / "run")


def nothing(action: Action, done: bool) -> None:
    pass


@pytest.mark.parametrize("name", DAMAGES)
def test_check_finds_it_and_changes_no_byte_and_takes_no_lock(path, name, monkeypatch):
    damage = DAMAGES[name]
    damage.do(path)
    before = tree(path)
    monkeypatch.setattr(Disk, "lock", lambda *_, **__: pytest.fail("a lock was taken"))
    found = check(path)
    assert {of.why for of in found.findings} == damage.whys, found.findings
    assert found.sound is not any(why.level is Level.DAMAGE for why in damage.whys)
    assert tree(path) == before
    assert found.as_json()["sound"] is found.sound
    assert check(path) == found
    assert tree(path) == before


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in REFUSED])
def test_repair_does_what_its_dry_run_says_and_nothing_the_second_time(path, name):
    DAMAGES[name].do(path)
    before = tree(path)
    planned = [action.as_json() for action in plan(path)]
    assert tree(path) == before
    told: list[tuple[str, bool]] = []
    done = repair(path, Run(), lambda action, after: told.append((action.line, after)))
    did = [action.as_json() for action in done.actions]
    # What the index needs is planned for the segments as they are, and done once they are mended.
    assert [step for step in did if step["do"] != "reindex"] == [
        step for step in planned if step["do"] != "reindex"
    ]
    assert all(step in planned for step in did)
    assert sorted(line for line, after in told if after) == sorted(line for line, after in told if not after)
    assert done.left.sound is not (not DAMAGES[name].mended and bool(damage_levels(name)))
    after = tree(path)
    assert plan(path) == () and repair(path, Run(), nothing).actions == ()
    again = tree(path)
    assert {name: data for name, data in again.items() if not volatile(name)} == {
        name: data for name, data in after.items() if not volatile(name)
    }


INCURABLE = {Why.STRAY, Why.RENUMBERED, Why.DOUBLED, Why.UNDECODABLE}
"""What is only said: it does no harm, or nobody can know what was meant."""


def drain(path: Path) -> None:
    """Do what a run does: record all that waits."""
    store = RunStore.open(path, Run())
    while claims := store.queue.claim(10):
        store.results.append([make_record(claim) for claim in claims])
        store.queue.retire(claims)
    store.close(clean=True)


CURES = {
    "fafo store repair": lambda path: repair(path, Run(), nothing),
    "fafo store compact --damaged": lambda path: compact(
        path, Run(), None, failed=False, damaged=True, dry_run=False
    ),
    "fafo run": drain,
}


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in REFUSED])
def test_the_cures_that_check_names_work(path, name):
    DAMAGES[name].do(path)
    found = check(path)
    assert bool(found.cures) is bool({of.why for of in found.findings} - INCURABLE - {Why.UNCLEAN})
    for line in found.cures:
        for command in re.findall("`([^`]+)`", line)[: 2 if "then" in line else 1]:
            CURES[command](path)
    left = check(path)
    assert {of.why for of in left.findings} <= INCURABLE and left.cures == ()


@pytest.mark.parametrize("name", [name for name in DAMAGES if name not in REFUSED])
def test_a_run_mends_what_check_says_it_does(path, name):
    DAMAGES[name].do(path)
    before = {of.why for of in check(path).findings}
    told = any("the next `fafo run`" in line for line in check(path).cures)
    drain(path)
    assert not told or {of.why for of in check(path).findings} <= INCURABLE, before


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_cure_of_what_only_a_person_can_mend_is_named(path, name):
    DAMAGES[name].do(path)
    (line,) = check(path).cures
    assert line.startswith("results/") and ": " in line


def test_beside_a_run_the_cure_waits_for_its_end(path, run):
    (file,) = [file for file in growing(path) if file.parent.name == "results"]
    entry = entry_of(file, Kind.OUTPUT, 1)
    spoil(file, entry.offset, bytes(entry.end - entry.offset))
    (line,) = check(path).cures
    assert line.startswith("once the run has ended, `fafo store compact --damaged`")


def damage_levels(name: str) -> set[Level]:
    return {why.level for why in DAMAGES[name].whys} & {Level.DAMAGE}


def volatile(name: str) -> bool:
    """LOCK says who had it last; the index is LMDB's."""
    return name == "LOCK" or name.startswith("index/") or Path(name).suffix == ".hint"


# ---- beside others


RUN = """
import sys
from pathlib import Path
from fafo_run.log.directory import RunDirectory
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import item, record

with RunDirectory.own(Path(sys.argv[1])) as directory:
    directory.mark_running()
    results, queue = Results(directory), Queue(directory)
    results.append([record(number) for number in (40, 41, 42)])
    queue.append([item(50)])
    print("works", flush=True)
    sys.stdin.read()
    results.close(clean=True)
    queue.close(clean=True)
    directory.mark_stopped()
"""


@pytest.fixture
def run(path) -> Iterator[None]:
    """Another process that has the store, and has written records and an item."""
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, str(path)], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin and child.stdout
    assert child.stdout.readline() == b"works\n"
    yield
    child.communicate()
    assert child.returncode == 0


def growing(path: Path) -> list[Path]:
    return [file for file in path.glob("*/*.seg") if look(file)[1].seal is None]


def test_check_beside_a_run_a_producer_and_a_torn_write_finds_nothing(path, run):
    """What is just being written is no damage, though it looks like it."""
    other = QueueWriter(RunDirectory.join(path))
    other.append([item(51)])
    files = growing(path)
    ends = [file.stat().st_size for file in files]
    assert len(files) == 3
    for file, end in zip(files, ends, strict=True):
        spoil(file, end, b"half an entry")
    before = tree(path)
    found = check(path)
    assert found.running and found.sound and found.findings == ()
    assert (found.outputs, found.failures, found.waiting) == (8, 1, 5)
    with pytest.raises(StoreBusy):
        plan(path)
    assert tree(path) == before
    with pytest.raises(StoreBusy):
        repair(path, Run(), nothing)
    assert tree(path) == before
    for file, end in zip(files, ends, strict=True):
        os.truncate(file, end)
    other.close()


def test_a_producer_works_on_after_check_and_repair(path):
    """A segment of the queue that another process holds is nobody else's."""
    other = QueueWriter(RunDirectory.join(path))
    other.append([item(42)])
    file = max((path / "queue").glob("*.seg"))
    assert check(path).findings == () and plan(path) == ()
    before = file.read_bytes()
    assert repair(path, Run(), nothing).actions == ()
    assert file.read_bytes() == before
    other.append([item(43)])
    other.close(clean=False)
    assert {of.why for of in check(path).findings} == {Why.ABANDONED}
    assert [action.do for action in repair(path, Run(), nothing).actions] == ["seal"]
    with RunReader.open(path) as reader:
        assert {name_of(42), name_of(43)} <= reader.queue.identities()


def test_a_deleted_lock_is_said_while_a_run_works(path):
    with RunDirectory.own(path):
        (path / "LOCK").unlink()
        found = check(path)
        assert [of.why for of in found.findings] == [Why.LOCK_LOST] and found.running and found.sound


def test_damage_before_the_end_of_a_growing_segment_is_damage(path, run):
    (file,) = [file for file in growing(path) if file.parent.name == "results"]
    entry = entry_of(file, Kind.OUTPUT, 1)
    data = file.read_bytes()[entry.offset : entry.end]
    spoil(file, entry.offset, bytes(len(data)))
    (found,) = check(path).findings
    assert found.why is Why.GAP and isinstance(found, Keep)
    spoil(file, entry.offset, data)
    assert check(path).findings == ()


def test_a_store_that_isnt_there_is_not_made(tmp_path):
    for look_at in (check, plan, lambda path: repair(path, Run(), nothing)):
        with pytest.raises(StoreError, match="no store is here"):
            look_at(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_only_a_person_can_mend_is_refused_and_not_touched(path, name):
    DAMAGES[name].do(path)
    before = tree(path)
    with pytest.raises(StoreError) as caught:
        repair(path, Run(), nothing)
    assert caught.value.problems[0].cure
    after = tree(path)
    assert {key: data for key, data in after.items() if key != "LOCK"} == {
        key: data for key, data in before.items() if key != "LOCK"
    }


def test_format_that_cant_be_read_is_said_and_left_to_a_person(path):
    (path / "FORMAT").write_bytes(b"{")
    found = check(path)
    assert not found.sound and found.findings[0].do == "refuse" and found.outputs == 5
    with pytest.raises(StoreError, match="FORMAT can't be read"):
        repair(path, Run(), nothing)
    assert (path / "FORMAT").read_bytes() == b"{"


def test_format_is_not_made_beside_segments_of_another_version(path):
    (path / "FORMAT").unlink()
    DAMAGES["another version"].do(path)
    for open_it in (RunDirectory.own, RunDirectory.join, RunDirectory.look):
        with pytest.raises(StoreError, match="format version 3"):
            open_it(path)
    assert not (path / "FORMAT").exists()


def test_format_is_made_anew_beside_segments_and_said(path):
    store = RunDirectory.look(path).store
    (path / "FORMAT").unlink()
    for open_it in (RunDirectory.look, RunDirectory.join):
        with pytest.raises(StoreError, match="FORMAT is gone, and segments are here"):
            open_it(path)
    opened = RunStore.open(path, Run())
    assert opened.directory.store != store
    assert [line for line in opened.recovered if "segments are here" in line]
    assert opened.results.summary().total.outputs == 5 and opened.queue.depth() == 3
    opened.close(clean=True)
    opened = RunStore.open(path, Run())
    assert opened.recovered == ()
    opened.close(clean=True)


def test_a_store_on_a_network_file_system_is_used_when_the_declaration_says_so(path, monkeypatch, tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 22 0:50 / {path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr("fafo_run.log.locking._MOUNTS", mounts)
    allowed = Run(network_file_system=True)

    def submit(settings: Run) -> None:
        with appending(path, settings):
            pass

    for use in (
        lambda settings: RunStore.open(path, settings).close(clean=True),
        lambda settings: repair(path, settings, nothing),
        lambda settings: reindex(path, settings),
        lambda settings: compact(path, settings, None, failed=False, damaged=False, dry_run=False),
        submit,
    ):
        with pytest.raises(StoreError, match="network file system") as caught:
            use(Run())
        assert "run.network_file_system" in (caught.value.problems[0].cure or "")
        use(allowed)
    assert check(path).sound, "to look at it takes no lock"


# ---- what LOCK, RUNNING and FORMAT may be


@pytest.mark.parametrize("name", ["LOCK", "RUNNING", "FORMAT", "quarantine", "queue", "results", "index"])
def test_a_folder_where_a_file_has_to_be_and_the_other_way_round(tmp_path, name):
    """An error that names the place, and nothing is made, moved or left locked."""
    path = tmp_path / "run"
    path.mkdir()
    if name.isupper():
        (path / name).mkdir()
    else:
        (path / name).write_bytes(b"mine")
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            RunStore.open(path, Run()).close(clean=True)
        assert caught.value.problems[0].file == str(path / name) and caught.value.problems[0].cure
    assert not is_held(path / "LOCK")
    assert (path / name).is_dir() if name.isupper() else (path / name).read_bytes() == b"mine"


def test_the_pid_of_a_stranger_in_lock_decides_nothing(path):
    (path / "LOCK").write_text('{"pid": 1, "started": 0, "boot_id": "x"}')
    assert not check(path).running and plan(path) == ()
    opened = RunStore.open(path, Run())
    assert opened.recovered == ()
    (path / "LOCK").write_text('{"pid": 1}')
    with pytest.raises(StoreBusy):
        RunStore.open(path, Run())
    opened.close(clean=True)
