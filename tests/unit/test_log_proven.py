"""What a digest vouches for isn't looked at entry by entry; so it may never vouch for damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafo_run.log import appender, reader
from fafo_run.log import format as layout
from fafo_run.log.appender import Appender, Draft
from fafo_run.log.batch import Entry
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import HEADER_SIZE, NO_IDENTITY, Kind, SegmentKind
from fafo_run.log.recovery import recover
from fafo_run.log.route import Route
from tests.log_nouns import look, name_of

ROUTE = Route(b"m" * 32, b"a" * 32, 512)
PROVENANCE = b"\x9b" + bytes(11)
BATCHES = 4


@pytest.fixture
def committed(tmp_path, monkeypatch) -> Path:
    """A segment that a run left unsealed: four batches of two items, a COMMIT behind each."""
    monkeypatch.setattr(appender, "COMMIT_EVERY", 0)
    with RunDirectory.own(tmp_path) as directory:
        directory.mark_running()
        writer = Appender(directory, SegmentKind.QUEUE)
        for number in range(0, 2 * BATCHES, 2):
            placed = writer.commit([draft(number), draft(number + 1)])
        segment = placed[0].segment
        segment.writer.close()
        return segment.writer.file.path


def draft(number: int, payload: bytes = b"") -> Draft:
    return Draft(ROUTE, PROVENANCE, Kind.ITEM, name_of(number), payload or b"x" * 88)


def items(entries: list[Entry]) -> list[bytes]:
    return [entry.identity for entry in entries if entry.identity != NO_IDENTITY]


@pytest.fixture
def checked(monkeypatch) -> list[int]:
    """The offsets from which entries were checked one by one."""
    starts: list[int] = []
    real = reader.check_entries

    def spy(uuid, data, base, at, *, trusted=False):
        if not trusted:
            starts.append(base + at)
        return real(uuid, data, base, at, trusted=trusted)

    monkeypatch.setattr(reader, "check_entries", spy)
    return starts


def test_entries_before_the_last_commit_are_proven_by_its_digest_alone(committed, checked):
    _, found, entries = look(committed)
    assert items(entries) == [name_of(number) for number in range(2 * BATCHES)]
    assert found.gaps == () and found.count == 1 + 3 * BATCHES and found.live == 2 * BATCHES
    (last,) = [entry.offset for entry in entries if entry.kind == Kind.COMMIT][-1:]
    assert checked == [last]


def test_a_sealed_segment_is_proven_by_its_seal(tmp_path, committed, checked):
    with RunDirectory.own(tmp_path) as directory:
        recover(directory)
    checked.clear()
    _, found, entries = look(committed)
    assert found.seal is not None and found.damage == () and len(items(entries)) == 2 * BATCHES
    assert checked == [found.seal.end]


def test_every_flipped_byte_before_a_commit_is_found(committed):
    data = committed.read_bytes()
    whole = look(committed)[2]
    for at in range(HEADER_SIZE, len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        committed.write_bytes(broken)
        _, found, entries = look(committed)
        (hit,) = [entry for entry in whole if entry.offset <= at < entry.end]
        inside = at - hit.offset
        if 4 <= inside < 8:
            assert found.odd_markers == 1 and items(entries) == items(whole)
        elif inside >= layout.ENTRY_SIZE + len(hit.payload):
            assert found.odd_padding == 1 and items(entries) == items(whole)
        else:
            assert items(entries) == [name for name in items(whole) if name != hit.identity]
            assert [gap.offset for gap in found.gaps] == [hit.offset]


def test_a_seal_written_over_damage_does_not_vouch_for_it(tmp_path, committed):
    """Not even for an entry whose damaged length ends where the next one does, so that none seems missing."""
    first, second = [entry for entry in look(committed)[2] if entry.kind == Kind.ITEM][:2]
    assert second.end - second.offset == 128 and len(first.payload) ^ 128 == 128 + len(first.payload)
    data = bytearray(committed.read_bytes())
    data[first.offset + 8] ^= 128
    committed.write_bytes(data)
    with RunDirectory.own(tmp_path) as directory:
        assert recover(directory).damaged
    for _ in range(2):
        _, found, entries = look(committed)
        assert (
            found.seal is not None
            and found.damage != ()
            and [gap.offset for gap in found.gaps] == [first.offset]
        )
        assert items(entries) == [name_of(number) for number in range(1, 2 * BATCHES)]


def test_what_nobody_vouches_for_in_time_is_checked_entry_by_entry(committed, checked, monkeypatch):
    monkeypatch.setattr(reader, "_UNPROVEN", 100)
    assert len(items(look(committed)[2])) == 2 * BATCHES
    assert checked == [HEADER_SIZE]


def test_a_run_writes_a_commit_now_and_then(tmp_path):
    with RunDirectory.own(tmp_path) as directory:
        writer = Appender(directory, SegmentKind.RESULTS)
        third = b"x" * (appender.COMMIT_EVERY // 3 + 1)
        for number in range(7):
            placed = writer.commit([draft(number, third)])
        placed[0].segment.writer.close()
        _, _, entries = look(placed[0].segment.writer.file.path)
    assert [entry.kind for entry in entries if entry.kind != Kind.PROVENANCE] == [
        *[Kind.ITEM] * 3, Kind.COMMIT, *[Kind.ITEM] * 3, Kind.COMMIT, Kind.ITEM
    ]  # fmt: skip
