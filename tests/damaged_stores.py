"""A small store that stopped cleanly, and everything that can be wrong with one."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import xxhash

from fafo_run.log.actions import Why
from fafo_run.log.appender import Appender, Draft
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Kind, SegmentKind
from fafo_run.log.fs import Disk
from fafo_run.log.payload import pack_provenance
from fafo_run.log.reader import Entry
from fafo_run.log.route import route_of
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from tests.log_nouns import FAKE, digest, failure, item, look, name_of, record


class FastDisk(Disk):
    """Syncs nothing: for tests that are about bytes."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def make(path: Path) -> Path:
    """Make a store of three results segments, two of one route, and one of the queue."""
    with RunDirectory.own(path, FastDisk()) as directory:
        results = Results(directory)
        results.append([record(0), record(1, failure()), record(2)])
        results.seal()
        results.append([record(number) for number in (3, 4)])
        results.append([record(5, lane=9)])
        results.close(clean=True)
        queue = Queue(directory)
        queue.append([item(number) for number in (20, 21, 22)])
        queue.close(clean=True)
        directory.mark_stopped()
    return path


def tree(path: Path) -> dict[str, bytes | None]:
    """Return all files and folders with their content, but LMDB's list of readers."""
    found = {str(of.relative_to(path)): of.read_bytes() if of.is_file() else None for of in path.rglob("*")}
    found.pop("index/lock.mdb", None)
    return found


def queue_segment(path: Path) -> Path:
    return path / "queue" / "00000001.seg"


def results_segment(path: Path, number: int = 1) -> Path:
    return path / "results" / f"{number:08d}.seg"


def spoil(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        handle.write(data)


def entry_of(file: Path, kind: Kind, number: int = 0) -> Entry:
    return [entry for entry in look(file)[2] if entry.kind == kind][number]


def cut_end(file: Path, by: int) -> None:
    os.truncate(file, file.stat().st_size - by)


def append_raw(path: Path, drafts: list[Draft], *, seal: bool = True) -> Path:
    """Append to the results what `Results` would refuse."""
    with RunDirectory.own(path, FastDisk()) as directory:
        appender = Appender(directory, SegmentKind.RESULTS)
        segment = appender.commit(drafts)[0].segment
        if seal:
            appender.roll(segment)
        segment.writer.close()
        return segment.writer.file.path


def raw_draft(number: int, payload: bytes | None = None) -> Draft:
    from fafo_run.log.payload import ProvenanceCache
    from fafo_run.results.payload import draft

    whole = draft(record(number, lane=9), ProvenanceCache())
    if payload is None:
        return whole
    route = route_of(digest("tiny"), digest("judge"), 9)
    return Draft(route, pack_provenance(FAKE), Kind.OUTPUT, name_of(number), payload)


def killed(path: Path) -> None:
    """Leave the store as a run that was killed while it wrote."""
    with RunDirectory.own(path, FastDisk()) as directory:
        directory.mark_running()
    file = append_raw(path, [raw_draft(7)], seal=False)
    spoil(file, file.stat().st_size, b"half an entry")


def header_of_version(path: Path, version: int) -> None:
    file = results_segment(path)
    body = bytearray(file.read_bytes()[:2040])
    struct.pack_into("<I", body, 8, version)
    spoil(file, 0, (bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))) * 2)


def odd_padding(path: Path) -> None:
    file = results_segment(path)
    entry = next(entry for entry in look(file)[2] if entry.end - entry.offset - 40 > len(entry.payload))
    spoil(file, entry.end - 1, b"x")


def done_already(path: Path) -> None:
    with RunDirectory.own(path, FastDisk()) as directory:
        queue = Queue(directory)
        queue.append([item(0)])
        queue.close(clean=True)


class Damage(NamedTuple):
    do: Callable[[Path], object]
    whys: set[Why]
    """What is to be found, and nothing else."""
    mended: bool = True
    """Whether a repair leaves none of it."""


DAMAGES: dict[str, Damage] = {
    "nothing": Damage(lambda path: None, set()),
    "header without a name": Damage(
        lambda path: results_segment(path, 9).with_suffix(".seg.tmp").write_bytes(b"x"), {Why.NEVER_NAMED}
    ),
    "half a removal": Damage(
        lambda path: queue_segment(path).with_name("00000009.dead").write_bytes(b"x"), {Why.GIVEN_UP}
    ),
    "stray": Damage(
        lambda path: results_segment(path).with_name("mine.seg").write_bytes(b"x"), {Why.STRAY}, mended=False
    ),
    "half a header": Damage(lambda path: spoil(results_segment(path), 30, b"\xff\xff"), {Why.HEADER_HALF}),
    "the other half": Damage(lambda path: spoil(results_segment(path), 2078, b"\xff\xff"), {Why.HEADER_HALF}),
    "no header": Damage(
        lambda path: queue_segment(path).with_name("00000007.seg").write_bytes(b"junk" * 2000),
        {Why.HEADER_LOST},
    ),
    "a copy": Damage(
        lambda path: shutil.copy(results_segment(path), results_segment(path, 9)),
        {Why.COPY, Why.INDEX_LOST},
    ),
    "another name": Damage(
        lambda path: queue_segment(path).rename(queue_segment(path).with_name("00000004.seg")),
        {Why.RENUMBERED},
        mended=False,
    ),
    "a gap": Damage(
        lambda path: spoil(
            results_segment(path), entry_of(results_segment(path), Kind.OUTPUT).offset, bytes(64)
        ),
        {Why.GAP, Why.HINT_WRONG, Why.INDEX_ELSEWHERE},
        mended=False,
    ),
    "nothing but a seal": Damage(
        lambda path: spoil(
            results_segment(path, 3), 4096, bytes(look(results_segment(path, 3))[1].end - 4160)
        ),
        {Why.GAP, Why.HINT_WRONG, Why.INDEX_ELSEWHERE},
        mended=False,
    ),
    "a gap in the queue": Damage(
        lambda path: spoil(queue_segment(path), entry_of(queue_segment(path), Kind.ITEM).offset, bytes(64)),
        {Why.GAP},
        mended=False,
    ),
    "junk behind a seal": Damage(
        lambda path: spoil(results_segment(path), results_segment(path).stat().st_size, b"junk" * 5),
        {Why.GAP, Why.VANISHED, Why.INDEX_LOST},
        mended=False,
    ),
    "an odd marker": Damage(
        lambda path: spoil(
            queue_segment(path), entry_of(queue_segment(path), Kind.ITEM).offset + 4, b"\1\2\3\4"
        ),
        {Why.ODD_MARKER},
        mended=False,
    ),
    "an odd marker of a result": Damage(
        lambda path: spoil(
            results_segment(path), entry_of(results_segment(path), Kind.OUTPUT).offset + 4, b"\1\2\3\4"
        ),
        {Why.ODD_MARKER},
        mended=False,
    ),
    "odd padding": Damage(odd_padding, {Why.ODD_PADDING, Why.CHANGED}, mended=False),
    "a killed run": Damage(killed, {Why.UNCLEAN, Why.INTERRUPTED, Why.UNSEALED}),
    "a lost end": Damage(
        lambda path: cut_end(results_segment(path, 2), 30),
        {Why.TORN, Why.UNSEALED, Why.VANISHED, Why.INDEX_LOST},
    ),
    "a lost end of the queue": Damage(
        lambda path: cut_end(queue_segment(path), 30), {Why.ABANDONED, Why.UNSEALED}
    ),
    "a lost seal of the queue": Damage(lambda path: cut_end(queue_segment(path), 64), {Why.ABANDONED}),
    "FORMAT gone": Damage(lambda path: (path / "FORMAT").unlink(), {Why.FORMAT_LOST, Why.INDEX_LOST}),
    "RUNNING left": Damage(
        lambda path: (path / "RUNNING").write_text('{"boot_id": "x", "pid": 1, "started": 0}'),
        {Why.UNCLEAN, Why.INDEX_LOST},
    ),
    "RUNNING unreadable": Damage(
        lambda path: (path / "RUNNING").write_bytes(b"\xff{"), {Why.UNCLEAN, Why.INDEX_LOST}
    ),
    "LOCK unreadable": Damage(lambda path: (path / "LOCK").write_bytes(b"\xff{"), set()),
    "LOCK gone": Damage(lambda path: (path / "LOCK").unlink(), set()),
    "done already": Damage(done_already, {Why.DONE}),
    "no index": Damage(lambda path: shutil.rmtree(path / "index"), {Why.INDEX_LOST}),
    "a wrong index": Damage(
        lambda path: spoil(path / "index" / "data.mdb", 0, os.urandom(8192)), {Why.INDEX_LOST}
    ),
    "a damaged hint": Damage(
        lambda path: spoil(results_segment(path).with_suffix(".hint"), 70, b"\xff\xff"),
        {Why.HINT_WRONG},
    ),
    "another's hint": Damage(
        lambda path: shutil.copy(
            results_segment(path, 2).with_suffix(".hint"), results_segment(path).with_suffix(".hint")
        ),
        {Why.HINT_WRONG},
    ),
    "a segment gone": Damage(lambda path: results_segment(path, 3).unlink(), {Why.VANISHED, Why.INDEX_LOST}),
    "two outputs": Damage(
        lambda path: append_raw(path, [raw_draft(30), raw_draft(30)]), {Why.DOUBLED}, mended=False
    ),
    "not a record": Damage(
        lambda path: append_raw(path, [raw_draft(31, b"\xc0")]), {Why.UNDECODABLE}, mended=False
    ),
    "in the wrong folder": Damage(
        lambda path: queue_segment(path).rename(results_segment(path, 9)), {Why.MISPLACED}, mended=False
    ),
    "another version": Damage(lambda path: header_of_version(path, 3), {Why.VERSION}, mended=False),
}
