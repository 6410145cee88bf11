"""Each step of recovery is cut short at each call to the disk, and done again: the same store comes of it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fafo_build.errors import StoreError
from fafo_build.project.declaration import Run
from fafo_run.log.actions import Action, Cut, Keep, Level, PutAside, Seal, Tell, Why
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import HEADER_SIZE
from fafo_run.log.fs import Disk, File, replace_file
from fafo_run.log.quarantine import has_bytes, keep_bytes, kept, put_aside
from fafo_run.log.recovery import recover, to_do
from fafo_run.log.segment import SegmentWriter
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.store import RunStore
from tests.damaged_stores import (
    DAMAGES,
    FastDisk,
    killed,
    make,
    queue_segment,
    results_segment,
    spoil,
    tree,
)
from tests.disk.watched import Killed, Watched
from tests.log_nouns import item, record

DURABILITY = (Path(__file__).parents[2] / "docs" / "durability.md").read_text("utf-8")


class Dying(Watched, FastDisk):
    """Dies at the Nth call that changes the disk; a write is done half."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def before(self, call, path):
        self.left -= 1
        if self.left < 0:
            raise Killed

    def pwrite(self, fd, data, offset):
        if self.left == 0:
            FastDisk.pwrite(self, fd, data[: len(data) // 2], offset)
        return super().pwrite(fd, data, offset)


def recovered(path: Path, disk: Disk | None = None) -> list[Action]:
    """Recover all segments of a store, and return what was done or said."""
    done: list[Action] = []
    with RunDirectory.own(path, FastDisk()) as directory:
        directory.disk = disk or FastDisk()
        for action in to_do(directory, thorough=True):
            action.apply(directory)
            done.append(action)
    return done


def kept_tree(path: Path) -> dict[str, bytes | None]:
    """All but what says who had the store last, and FORMAT, whose uuid is new each time."""
    return {name: data for name, data in tree(path).items() if name not in {"LOCK", "FORMAT"}}


def without_own_halves(after: dict[str, bytes | None], expected: dict[str, bytes | None]) -> object:
    """Leave out, of what lies in quarantine/, the beginnings of what recovery itself then wrote whole."""
    whole = dict(after)
    for name in after.keys() - expected.keys():
        found = re.fullmatch(r"quarantine/(\w+)-(\d{8})-(\d+)-(\d+)\.bin", name)
        if found is None:
            continue
        segment = expected[f"{found[1]}/{found[2]}.seg"]
        assert segment is not None and after[name] == segment[int(found[3]) :][: int(found[4])]
        del whole[name], whole[name.removesuffix(".bin") + ".reason"]
    return whole


DERIVED = {Why.INDEX_LOST, Why.INDEX_ELSEWHERE, Why.HINT_WRONG}
STEPS = [name for name in DAMAGES if name not in {"in the wrong folder", "another version"}]


def kill_at_each_call(tmp_path: Path, name: str) -> None:
    make(tmp_path / "pristine")
    DAMAGES[name].do(tmp_path / "pristine")
    shutil.copytree(tmp_path / "pristine", tmp_path / "whole")
    recovered(tmp_path / "whole")
    expected = kept_tree(tmp_path / "whole")
    for calls in range(200):
        run = tmp_path / f"run{calls}"
        shutil.copytree(tmp_path / "pristine", run)
        try:
            recovered(run, Dying(calls))
            break
        except Killed:
            recovered(run)
        after = kept_tree(run)
        assert without_own_halves(after, expected) == expected, f"killed at call {calls}"
    assert 0 < calls < 199


@pytest.mark.parametrize("name", STEPS)
def test_killed_at_each_call_of_a_step_and_done_again(tmp_path, name):
    kill_at_each_call(tmp_path, name)


def cut_first(self: Cut, directory: RunDirectory) -> None:
    """Copies what it cuts only afterwards, out of its memory."""
    data = self.path.read_bytes()[self.offset :]
    File(directory.disk, self.path, write=True).truncate(self.offset)
    replace_file(directory.disk, directory.quarantine / f"late-{self.offset}.bin", data)


def move_first(self: PutAside, directory: RunDirectory) -> None:
    """Says why only when the file has gone."""
    aside = directory.quarantine / f"{self.path.parent.name}-{self.path.name}"
    directory.disk.rename(self.path, aside)
    replace_file(directory.disk, aside.with_name(aside.name + ".reason"), self.line.encode() + b"\n")


def seal_anew(self: Seal, directory: RunDirectory) -> None:
    """Writes the provenance again though an earlier recovery has."""
    said = [entry.payload for entry in self.scan.provenance]
    file = File(directory.disk, self.path, write=True)
    SegmentWriter(file, self.scan.header, self.scan.end, self.scan.count, self.scan.hasher.copy()).seal(said)


@pytest.mark.parametrize(
    ("action", "fault", "name"),
    [
        (Cut, cut_first, "a killed run"),
        (PutAside, move_first, "no header"),
        (Seal, seal_anew, "a killed run"),
    ],
)
def test_kills_show_a_step_that_cant_be_cut_short(tmp_path, monkeypatch, action, fault, name):
    monkeypatch.setattr(action, "apply", fault)
    with pytest.raises(AssertionError, match="killed at call"):
        kill_at_each_call(tmp_path, name)


@pytest.mark.parametrize("name", STEPS)
def test_the_second_time_there_is_nothing_to_do(tmp_path, name):
    make(tmp_path / "run")
    DAMAGES[name].do(tmp_path / "run")
    recovered(tmp_path / "run")
    before = kept_tree(tmp_path / "run")
    again = recovered(tmp_path / "run")
    left = [action for action in again if action.why is not Why.UNSYNCED]
    assert all(isinstance(action, Tell) for action in left), left
    assert kept_tree(tmp_path / "run") == before


def test_several_at_once(tmp_path):
    run = make(tmp_path / "run")
    together = ["half a header", "no header", "a copy", "a gap", "a gap in the queue", "an odd marker"]
    for name in together:
        DAMAGES[name].do(run)
    killed(run)
    whys = {action.why for action in recovered(run)}
    assert set().union(*(DAMAGES[name].whys for name in together)) <= whys | DERIVED
    assert {Why.INTERRUPTED, Why.UNSEALED} <= whys


def test_a_disk_that_cant_read_a_segment_stops_recovery(tmp_path):
    """The others aren't mended as if nothing was; and the file stays where it is."""
    run = make(tmp_path / "run")

    class Failing(FastDisk):
        def pread(self, fd, length, offset):
            if Path(f"/proc/self/fd/{fd}").readlink() == queue_segment(run):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, length, offset)

    before = kept_tree(run)
    with RunDirectory.own(run, FastDisk()) as directory:
        directory.disk = Failing()
        with pytest.raises(StoreError, match=os.strerror(errno.EIO)):
            recover(directory)
    assert kept_tree(run) == before


def test_more_gaps_than_anyone_wants_files_of_are_kept_in_one_piece(tmp_path, monkeypatch):
    run = make(tmp_path / "run")
    monkeypatch.setattr("fafo_run.log.survey._MOST_GAPS", 1)
    for name in ("a gap", "junk behind a seal"):
        DAMAGES[name].do(run)
    (keep,) = [action for action in recovered(run) if isinstance(action, Keep)]
    data = results_segment(run).read_bytes()
    assert data[keep.offset : keep.offset + keep.length].endswith(b"junk" * 5)
    assert has_bytes(RunDirectory.look(run), results_segment(run), keep.offset, keep.length)


# ---- quarantine


def test_what_lies_in_quarantine_is_never_replaced(tmp_path):
    file = queue_segment(make(tmp_path / "run"))
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        (directory.quarantine / "queue-00000001-4096-8-2.bin").mkdir()
        for data in (b"12345678", b"abcdefgh", b"12345678"):
            spoil(file, 4096, data)
            keep_bytes(directory, file, 4096, 8, f"found {data!r}")
        for _ in range(2):
            stray = file.with_name("00000009.seg")
            stray.write_bytes(b"mine")
            put_aside(directory, stray, "not a segment")
        assert [(of.name, of.size, of.reason) for of in kept(directory)] == [
            ("queue-00000001-4096-8-3.bin", 8, "found b'abcdefgh'"),
            ("queue-00000001-4096-8.bin", 8, "found b'12345678'"),
            ("queue-00000009.seg", 4, "not a segment"),
            ("queue-00000009.seg-2", 4, "not a segment"),
        ]


def test_a_large_piece_is_copied_without_holding_it(tmp_path, monkeypatch):
    monkeypatch.setattr("fafo_run.log.quarantine._PIECE", 1000)
    file = results_segment(make(tmp_path / "run"))
    largest = 0

    class Watching(FastDisk):
        def pread(self, fd, length, offset):
            nonlocal largest
            largest = max(largest, length)
            return super().pread(fd, length, offset)

    with RunDirectory.own(tmp_path / "run", Watching()) as directory:
        size = file.stat().st_size
        keep_bytes(directory, file, 0, size, "all of it")
        assert has_bytes(directory, file, 0, size) and not has_bytes(directory, file, 1, size - 1)
    assert largest == 1000
    assert (
        tmp_path / "run" / "quarantine" / f"results-00000001-0-{size}.bin"
    ).read_bytes() == file.read_bytes()


# ---- reasons


def test_every_reason_is_documented_and_no_other():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", DURABILITY, re.MULTILINE)
    assert dict(rows) == {why.value: why.level.value for why in Why}
    assert {level.value for level in Level} == {level for _, level in rows}


# ---- what it costs


def test_a_clean_start_reads_the_ends_of_results_and_the_queue_twice_at_most(tmp_path):
    """However many results there are: their entries are checked whenever they are read."""
    path = tmp_path / "run"
    with RunDirectory.own(path, FastDisk()) as directory:
        results, queue = Results(directory), Queue(directory)
        results.append([record(number) for number in range(1000)])
        queue.append([item(number) for number in range(2000, 3000)])
        results.close(clean=True)
        queue.close(clean=True)

    class Counting(FastDisk):
        def __init__(self) -> None:
            self.read: Counter[Path] = Counter()

        def pread(self, fd, length, offset):
            data = super().pread(fd, length, offset)
            self.read[Path(f"/proc/self/fd/{fd}").readlink()] += len(data)
            return data

    disk = Counting()
    with RunDirectory.own(path, disk) as directory:
        store = RunStore.on(directory, Run(), recover(directory))
        store.queue.close(clean=False)
        store.results.close()
    assert disk.read[results_segment(path)] < 6 * HEADER_SIZE < results_segment(path).stat().st_size
    size = queue_segment(path).stat().st_size
    assert size <= disk.read[queue_segment(path)] < 2 * size + 6 * HEADER_SIZE
