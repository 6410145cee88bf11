"""Damage of every kind to small logs: never a wrong payload, what follows is kept, and it is said."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.appender import Appender
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import COPY_SIZE, HEADER_SIZE, Kind, SegmentKind
from fafo_run.log.fs import Disk
from fafo_run.log.payload import ProvenanceCache
from fafo_run.log.recovery import RecoveryReport, recover
from fafo_run.queue import payload as queue_payload
from fafo_run.queue.queue import Queue
from fafo_run.results import payload as results_payload
from tests.log_nouns import failure, fixed_appender, item, look, name_of, output, record


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where there is one, for the same reason that `FastDisk` syncs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class FastDisk(Disk):
    """Syncs nothing: these tests are about bytes, and there are thousands of them."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def make(path: Path, *, sealed: bool, kind: SegmentKind = SegmentKind.QUEUE) -> Path:
    """Make a run with one small segment in it, and return the segment's file.

    What isn't sealed was left by a run that was killed.
    """
    with RunDirectory.own(path, FastDisk()) as directory:
        if not sealed:
            directory.mark_running()
        appender = fixed_appender(directory, kind)
        cache = ProvenanceCache()
        if kind is SegmentKind.QUEUE:
            drafts = [queue_payload.draft(item(number), cache) for number in range(3)]
        else:
            records = [record(0), record(1, failure()), record(2, output((65_536,)))]
            drafts = [results_payload.draft(one, cache) for one in records]
        segment = appender.commit(drafts)[0].segment
        if sealed:
            appender.roll(segment)
        segment.writer.close()
        return segment.writer.file.path


def again(path: Path) -> RecoveryReport:
    with RunDirectory.own(path, FastDisk()) as directory:
        return recover(directory, thorough=True)


def key(entry: Entry) -> tuple[int, bytes, bytes]:
    return entry.offset, entry.identity, entry.payload


def check_whole(path: Path, file: Path, expected: set[tuple[int, bytes, bytes]]) -> None:
    """After recovery: exactly these entries, sealed, and a second recovery changes nothing."""
    _, found, entries = look(file)
    kept = {key(entry) for entry in entries if entry.kind != Kind.PROVENANCE}
    assert kept == {entry for entry in expected if entry[1] != bytes(16)}
    assert found.seal is not None
    before = file.read_bytes()
    assert again(path).dropped_bytes == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize("kind", list(SegmentKind))
@pytest.mark.parametrize("sealed", [False, True])
def test_every_flipped_byte(tmp_path, sealed, kind):
    pristine = make(tmp_path / "run", sealed=sealed, kind=kind)
    data = pristine.read_bytes()
    originals = look(pristine)[2]
    every = [*range(0, HEADER_SIZE, 97), *range(HEADER_SIZE, len(data))]
    for at in every:
        shutil.rmtree(tmp_path / "run" / "quarantine")
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        pristine.write_bytes(bytes(broken))
        report = again(tmp_path / "run")
        assert report.findings, f"damage at {at} was not reported"
        hit = {key(entry) for entry in originals if entry.offset <= at < entry.end}
        harmless = {found for found in hit if key_survives(originals, found, at)}
        check_whole(tmp_path / "run", pristine, {key(entry) for entry in originals} - hit | harmless)


def key_survives(originals: list[Entry], hit: tuple[int, bytes, bytes], at: int) -> bool:
    """Whether a byte of an entry is its marker or its padding, which its checksum doesn't cover."""
    (entry,) = [entry for entry in originals if key(entry) == hit]
    inside = at - entry.offset
    return 4 <= inside < 8 or inside >= 40 + len(entry.payload)


@pytest.mark.parametrize("kind", list(SegmentKind))
@pytest.mark.parametrize("sealed", [False, True])
def test_every_truncation(tmp_path, sealed, kind):
    pristine = make(tmp_path / "run", sealed=sealed, kind=kind)
    data = pristine.read_bytes()
    originals = look(pristine)[2]
    sizes = [*range(0, HEADER_SIZE, 97), *range(HEADER_SIZE, len(data))]
    for size in sizes:
        shutil.rmtree(tmp_path / "run" / "quarantine")
        pristine.write_bytes(data[:size])
        report = again(tmp_path / "run")
        whole = {key(entry) for entry in originals if entry.end <= size}
        if size < COPY_SIZE:
            assert report.quarantined == 1 and not pristine.exists()
            continue
        clean = size in {HEADER_SIZE, *(entry.end for entry in originals)}
        assert bool(report.findings) is (sealed or not clean), f"cut at {size}"
        torn = sealed and kind is SegmentKind.RESULTS
        assert report.torn == torn, f"cut at {size}"
        assert report.damaged is (torn or size < HEADER_SIZE), f"cut at {size}"
        if size >= HEADER_SIZE:
            kept = [path.read_bytes() for path in (tmp_path / "run" / "quarantine").glob("*.bin")]
            end = max([HEADER_SIZE, *(entry.end for entry in originals if entry.end <= size)])
            assert kept == ([data[end:size]] if size > end else []), f"cut at {size}"
        check_whole(tmp_path / "run", pristine, whole)
        assert look(pristine)[1].damage == (), f"cut at {size}"
        assert again(tmp_path / "run").findings == (), f"cut at {size}"


@pytest.mark.parametrize("sealed", [False, True])
def test_the_next_run_appends_and_reads_after_any_damage(tmp_path, sealed):
    pristine = make(tmp_path / "run", sealed=sealed)
    data = pristine.read_bytes()
    for at in range(HEADER_SIZE, len(data), 29):
        broken = bytearray(data)
        broken[at] ^= 0x40
        shutil.rmtree(tmp_path / "run")
        make(tmp_path / "run", sealed=sealed)
        pristine.write_bytes(bytes(broken[: at + 40]) if not sealed else bytes(broken))
        for number in (7, 8):
            with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
                recover(directory)
                queue = Queue(directory)
                queue.append([item(number)])
                queue.close(clean=False)
        with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
            recover(directory)
            queue = Queue(directory)
            assert {name_of(7), name_of(8)} <= queue.identities()
            queue.close(clean=False)


def spoil(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        handle.write(data)


@pytest.mark.parametrize(
    "tail",
    [
        bytes(8),
        bytes(100_000),
        os.urandom(4999),
        b"\xfa\xf0EN" + struct.pack("<II", 0x4C495645, 0xFFFF_FFFF) + bytes(5000),
        b"\xfa\xf0EN" * 3000,
    ],
    ids=["8 zeros", "zeros", "random", "huge length", "magics"],
)
def test_junk_at_the_tail_is_cut(tmp_path, tail):
    file = make(tmp_path / "run", sealed=False)
    before = file.read_bytes()
    spoil(file, len(before), tail)
    report = again(tmp_path / "run")
    assert report.dropped_bytes == len(tail) and report.sealed == 1 and not report.damaged
    assert file.read_bytes().startswith(before)
    check_whole(tmp_path / "run", file, {key(entry) for entry in look(file)[2]})


def test_the_seal_covers_what_no_entry_covers_and_no_marker(tmp_path):
    file = make(tmp_path / "run", sealed=True)
    entry = next(entry for entry in look(file)[2] if entry.end - entry.offset - 40 > len(entry.payload))
    spoil(file, entry.offset + 4, struct.pack("<I", 0xB3B6A9BA))
    assert look(file)[1].damage == ()
    spoil(file, entry.end - 1, b"x")
    assert look(file)[1].damage == ("the content isn't what was sealed",)
    assert any("bytes between entries" in line for line in again(tmp_path / "run").findings)


def test_a_length_is_capped_before_it_is_used(tmp_path, monkeypatch):
    file = make(tmp_path / "run", sealed=False)
    monkeypatch.setattr("fafo_run.log.reader.MAX_PAYLOAD", 64)
    (gap,) = look(file)[1].gaps
    assert "the length field says" in gap.reason


def test_several_torn_records_at_the_tail_are_an_interrupted_write(tmp_path):
    file = make(tmp_path / "run", sealed=False)
    entries = look(file)[2]
    for entry in entries[2:]:
        spoil(file, entry.offset + 48, b"\0\0\0\0")
    report = again(tmp_path / "run")
    assert report.quarantined == 0 and report.dropped_bytes > 0
    check_whole(tmp_path / "run", file, {key(entry) for entry in entries[:2]})


@pytest.mark.parametrize("sealed", [False, True])
def test_a_gap_is_kept_in_place_and_copied_to_quarantine_with_a_reason(tmp_path, sealed):
    file = make(tmp_path / "run", sealed=sealed)
    entries = look(file)[2]
    hole = entries[2]
    spoil(file, hole.offset, bytes(hole.end - hole.offset))
    size = file.stat().st_size
    report = again(tmp_path / "run")
    assert report.quarantined == 1 and report.damaged and report.dropped_bytes == 0
    kept = tmp_path / "run" / "quarantine" / f"queue-00000001-{hole.offset}-{hole.end - hole.offset}.bin"
    assert kept.read_bytes() == bytes(hole.end - hole.offset)
    reason = kept.with_suffix(".reason").read_text()
    assert "damaged" in reason and str(hole.offset) in reason
    assert file.stat().st_size >= size
    check_whole(tmp_path / "run", file, {key(entry) for entry in entries if entry is not hole})
    later = again(tmp_path / "run")
    assert later.damaged and later.quarantined == 0, "said again, not copied again"
    assert len(list((tmp_path / "run" / "quarantine").iterdir())) == 2


def test_a_stale_or_misplaced_entry_is_refused(tmp_path):
    file = make(tmp_path / "run", sealed=False)
    data, entries = file.read_bytes(), look(file)[2]
    first, second = entries[1], entries[2]
    assert first.end - first.offset == second.end - second.offset
    spoil(file, second.offset, data[first.offset : first.end])
    again(tmp_path / "run")
    check_whole(tmp_path / "run", file, {key(entry) for entry in entries if entry is not second})


@pytest.mark.parametrize("data", [b"", b"x" * 100, bytes(HEADER_SIZE), os.urandom(9000)])
def test_a_file_without_a_header_is_put_aside_whole(tmp_path, data):
    file = make(tmp_path / "run", sealed=True)
    stray = file.with_name("00000002.seg")
    stray.write_bytes(data)
    report = again(tmp_path / "run")
    assert report.quarantined == 1 and not stray.exists()
    aside = tmp_path / "run" / "quarantine" / "queue-00000002.seg"
    assert aside.read_bytes() == data and "header" in aside.with_name(aside.name + ".reason").read_text()
    stray.write_bytes(data)
    again(tmp_path / "run")
    assert (tmp_path / "run" / "quarantine" / "queue-00000002.seg-2").read_bytes() == data
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        queue = Queue(directory)
        queue.append([item(9)])
        queue.close(clean=False)
    assert (file.with_name("00000003.seg")).exists(), "the number of what was put aside isn't used again"


def test_junk_behind_a_seal_is_kept_and_said(tmp_path):
    file = make(tmp_path / "run", sealed=True)
    before = file.read_bytes()
    spoil(file, len(before), b"junk" * 10)
    report = again(tmp_path / "run")
    assert report.quarantined == 1 and report.dropped_bytes == 0
    assert file.read_bytes() == before + b"junk" * 10


SHOULD_BE_SEALED = {
    SegmentKind.QUEUE: "not sealed, though {}: its writer was killed, or its end is gone",
    SegmentKind.RESULTS: "not sealed, though {}: its end is damaged or gone",
}
"""The queue has many writers; a killed one leaves what a lost end leaves."""


@pytest.mark.parametrize("kind", list(SegmentKind))
def test_a_cut_sealed_segment_that_ends_between_entries_is_sealed_again_and_said(tmp_path, kind):
    file = make(tmp_path / "run", sealed=True, kind=kind)
    entries = look(file)[2]
    os.truncate(file, entries[-1].end)
    report = again(tmp_path / "run")
    assert report.sealed == 1 and report.damaged is (kind is SegmentKind.RESULTS)
    line = SHOULD_BE_SEALED[kind].format("the last stop was clean")
    assert report.findings == (f"{kind.name.lower()}/00000001.seg: {line}; sealed",)
    check_whole(tmp_path / "run", file, {key(entry) for entry in entries})


@pytest.mark.parametrize("kind", list(SegmentKind))
def test_a_torn_segment_before_a_later_one_is_no_interrupted_write(tmp_path, kind):
    file = make(tmp_path / "run", sealed=True, kind=kind)
    data = file.read_bytes()
    entries = look(file)[2]
    noun, draft = (
        (item, queue_payload.draft) if kind is SegmentKind.QUEUE else (record, results_payload.draft)
    )
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        directory.mark_running()
        appender = Appender(directory, kind)
        appender.commit([draft(noun(8, lane=9), ProvenanceCache())])[0].segment.writer.close()
        later = appender.commit([draft(noun(9), ProvenanceCache())])[0].segment
        later.writer.close()
    os.truncate(file, entries[1].end + 9)
    os.truncate(later.writer.file.path, later.writer.synced - 1)
    report = again(tmp_path / "run")
    torn = kind is SegmentKind.RESULTS
    assert report.torn == report.quarantined == torn and report.dropped_bytes > 0, "the last one was"
    (kept,) = (tmp_path / "run" / "quarantine").glob("*-00000001-*.bin")
    assert kept.read_bytes() == data[entries[1].end :][:9]
    assert "a later segment follows it" in kept.with_suffix(".reason").read_text()
    assert again(tmp_path / "run").findings == ()


def test_what_was_kept_is_never_replaced(tmp_path):
    file = make(tmp_path / "run", sealed=True, kind=SegmentKind.RESULTS)
    data, entries = file.read_bytes(), look(file)[2]
    for torn in (b"12345678", b"abcdefgh", b"12345678"):
        file.write_bytes(data[: entries[-1].offset] + torn)
        assert again(tmp_path / "run").torn == 1
    kept = [path.read_bytes() for path in (tmp_path / "run" / "quarantine").glob("*.bin")]
    assert sorted(kept) == [b"12345678", b"abcdefgh"]


@pytest.mark.parametrize("kind", list(SegmentKind))
@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["00000001.seg", "00000009.seg"], "00000001.seg"),
        (["00000000.seg", "00000001.seg"], "00000001.seg"),
        (["00000004.seg", "00000007.seg"], "00000004.seg"),
        (["00000001.seg", "00000002.seg", "1234567890.seg"], "00000001.seg"),
    ],
)
def test_a_copy_of_a_segment_is_put_aside(tmp_path, kind, names, kept):
    file = make(tmp_path / "run", sealed=True, kind=kind)
    data = file.read_bytes()
    file.unlink()
    for name in names:
        file.with_name(name).write_bytes(data)
    report = again(tmp_path / "run")
    assert report.quarantined == len(names) - 1 and report.damaged
    assert [path.name for path in file.parent.iterdir()] == [kept]
    for name in set(names) - {kept}:
        aside = tmp_path / "run" / "quarantine" / f"{kind.name.lower()}-{name}"
        assert aside.read_bytes() == data
        assert f"a copy of {kept}" in aside.with_name(aside.name + ".reason").read_text()
    assert again(tmp_path / "run").quarantined == 0


ODD = [
    "²²²²²²²².seg",
    "٠٠٠٠٠٠٠٤.seg",
    "12345678901.seg",
    "1" * 20 + ".seg",
    "0000000001.seg",
    "1.seg",
    "x.seg",
]


@pytest.mark.parametrize("name", ODD)
def test_a_name_that_no_segment_has(tmp_path, name):
    file = make(tmp_path / "run", sealed=True)
    file.with_name(name).write_bytes(b"mine")
    report = again(tmp_path / "run")
    assert report.findings == (f"queue/{name}: not the name of a segment; nothing reads it",)
    assert file.with_name(name).read_bytes() == b"mine"
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        queue = Queue(directory)
        queue.append([item(9)])
        queue.close(clean=True)
    assert file.with_name("00000002.seg").exists()


@pytest.mark.parametrize("name", ["00000003.seg", "00000003.dead", "00000003.seg.tmp"])
@pytest.mark.parametrize("make_it", [Path.mkdir, lambda path: os.mkfifo(path)])
def test_a_folder_or_a_pipe_with_a_segments_name_is_passed_over(tmp_path, name, make_it):
    file = make(tmp_path / "run", sealed=True)
    make_it(file.with_name(name))
    report = again(tmp_path / "run")
    assert len(report.findings) == name.endswith(".seg") and not report.damaged
    assert file.with_name(name).exists()
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        queue = Queue(directory)
        assert queue.depth() == 3
        queue.close(clean=True)


def test_there_is_no_segment_behind_the_last_number(tmp_path):
    file = make(tmp_path / "run", sealed=True)
    file.with_name("9999999999.seg").write_bytes(b"junk")
    assert again(tmp_path / "run").quarantined == 1
    with RunDirectory.own(tmp_path / "run", FastDisk()) as directory:
        queue = Queue(directory)
        with pytest.raises(StoreError, match="no number after 9999999999"):
            queue.append([item(9)])
        queue.close(clean=True)


@pytest.mark.parametrize("at", [100, COPY_SIZE + 100])
def test_a_damaged_copy_of_a_header_is_written_anew(tmp_path, at):
    file = make(tmp_path / "run", sealed=True)
    data = file.read_bytes()
    spoil(file, at, b"\xff")
    assert len(again(tmp_path / "run").findings) == 1
    assert file.read_bytes() == data and again(tmp_path / "run").findings == ()


def test_another_format_version_is_not_touched(tmp_path):
    import xxhash

    file = make(tmp_path / "run", sealed=False)
    body = bytearray(file.read_bytes()[:2040])
    struct.pack_into("<I", body, 8, 3)
    spoil(file, 0, (bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))) * 2)
    before = file.read_bytes()
    with pytest.raises(StoreError, match="format version 3") as caught:
        again(tmp_path / "run")
    assert caught.value.problems[0].cure and file.read_bytes() == before


def test_a_segment_in_the_wrong_folder(tmp_path):
    file = make(tmp_path / "run", sealed=True)
    file.rename(tmp_path / "run" / "results" / file.name)
    with pytest.raises(StoreError, match="segment of the queue lies in results"):
        again(tmp_path / "run")


def test_removals_that_were_begun_are_finished(tmp_path):
    file = make(tmp_path / "run", sealed=True)
    file.with_suffix(".dead").write_bytes(b"x")
    file.with_name("00000007.seg.tmp").write_bytes(b"x")
    again(tmp_path / "run")
    assert [left.name for left in file.parent.iterdir()] == [file.name]


def test_recovery_needs_the_lock(tmp_path):
    make(tmp_path / "run", sealed=True)
    with pytest.raises(ValueError, match="lock"):
        recover(RunDirectory.look(tmp_path / "run"))


class Killed(BaseException):
    """The process ends here."""


class KillingDisk(FastDisk):
    """Dies at the Nth call that changes the disk; a write is done half."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def pwrite(self, fd, data, offset):
        if self.left == 0:
            super().pwrite(fd, data[: len(data) // 2], offset)
        self._step()
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        self._step()

    def sync_dir(self, path):
        self._step()

    def truncate(self, fd, size):
        self._step()
        super().truncate(fd, size)

    def rename(self, old, new):
        self._step()
        super().rename(old, new)

    def unlink(self, path):
        self._step()
        super().unlink(path)


def test_killed_at_every_step_of_recovery(tmp_path):
    run = tmp_path / "run"
    for calls in range(200):
        shutil.rmtree(run, ignore_errors=True)
        file = make(run, sealed=False)
        entries = look(file)[2]
        hole = entries[2]
        spoil(file, hole.offset + 44, b"\xff\xff")
        spoil(file, file.stat().st_size, b"torn" * 9)
        file.with_name("00000002.seg").write_bytes(b"headerless")
        file.with_name("00000003.dead").write_bytes(b"")
        done = False
        with RunDirectory.own(run, FastDisk()) as directory:
            directory.disk = KillingDisk(calls)
            try:
                recover(directory)
                done = True
            except Killed:
                pass
        again(run)
        check_whole(run, file, {key(entry) for entry in entries if entry is not hole})
        aside = {path.name for path in (run / "quarantine").iterdir()}
        assert {"queue-00000002.seg", "queue-00000002.seg.reason"} <= aside
        assert any(name.endswith(f"-{hole.end - hole.offset}.bin") for name in aside)
        assert not list(file.parent.glob("*.dead"))
        if done:
            break
    assert done and calls > 15
