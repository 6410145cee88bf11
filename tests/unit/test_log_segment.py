import errno
import os

import pytest

from fafo_build.errors import StoreError
from fafo_run.log.appender import Draft
from fafo_run.log.batch import Frames
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import Header, Kind, SegmentKind
from fafo_run.log.fs import Disk, DiskFull, SyncFailed
from fafo_run.log.payload import decode, encode
from fafo_run.log.route import Route
from fafo_run.log.segment import SegmentWriter
from tests.log_nouns import fixed_appender, look

HEADER = Header(SegmentKind.QUEUE, 1, b"u" * 16, b"m" * 32, b"a" * 32, 512, 0)


class FaultyDisk(Disk):
    """Writes a few bytes at a time, and fails when told to."""

    piece = 7
    room = 1 << 40
    fail_truncate = fail_sync = False

    def pwrite(self, fd, data, offset):
        if offset + self.piece > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data[: self.piece], offset)

    def truncate(self, fd, size):
        if self.fail_truncate:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)

    def fdatasync(self, fd):
        if self.fail_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


def frames(*payloads: bytes) -> Frames:
    count = len(payloads)
    return Frames([Kind.ITEM] * count, [bytes([number]) * 16 for number in range(count)], payloads)


@pytest.fixture
def disk():
    return FaultyDisk()


@pytest.fixture
def writer(disk, tmp_path):
    writer = SegmentWriter.create(disk, tmp_path, HEADER)
    yield writer
    writer.close()


def test_short_writes_are_completed(writer):
    offsets = writer.stage(frames(b"", b"x" * 100, b"y"))
    writer.sync()
    header, found, entries = look(writer.file.path)
    assert header == HEADER
    assert [entry.payload for entry in entries] == [b"", b"x" * 100, b"y"]
    assert [entry.offset for entry in entries] == offsets
    assert found.gaps == () and found.seal is None


def test_seal_says_what_the_content_is(writer):
    writer.stage(frames(b"a"))
    writer.sync()
    writer.seal([b"closing"])
    _, found, _ = look(writer.file.path)
    assert found.seal is not None and found.damage == ()
    assert (found.seal.count, found.seal.digest) == (2, found.digest)
    assert found.seal.end == found.size - 64 == found.end - 64


def test_full_disk_takes_the_batch_back(writer, disk):
    writer.stage(frames(b"kept"))
    writer.sync()
    disk.room = writer.synced + 20
    with pytest.raises(DiskFull, match="no room") as caught:
        writer.stage(frames(b"lost" * 100))
    assert caught.value.problems[0].cure
    assert writer.file.size() == writer.synced and writer.usable
    disk.room = 1 << 40
    writer.stage(frames(b"later"))
    writer.sync()
    _, found, entries = look(writer.file.path)
    assert [entry.payload for entry in entries] == [b"kept", b"later"] and found.gaps == ()


def test_a_write_that_cannot_be_taken_back_ends_the_segment(writer, disk):
    writer.stage(frames(b"kept"))
    writer.sync()
    disk.room, disk.fail_truncate = writer.synced + 20, True
    with pytest.raises(DiskFull):
        writer.stage(frames(b"lost" * 100))
    assert not writer.usable
    _, found, entries = look(writer.file.path)
    assert [entry.payload for entry in entries] == [b"kept"]
    assert [gap.tail for gap in found.gaps] == [True]


def test_a_failed_sync_is_final(writer, disk):
    writer.stage(frames(b"a"))
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        writer.sync()
    assert not writer.usable


def test_no_segment_without_a_durable_header(tmp_path, disk):
    disk.room = 1000
    with pytest.raises(DiskFull):
        SegmentWriter.create(disk, tmp_path, HEADER)
    assert not list(tmp_path.glob("*.seg"))


@pytest.fixture
def appender(tmp_path, disk):
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        appender = fixed_appender(directory, SegmentKind.QUEUE, segment_bytes=8192)
        yield appender
        for segment in appender.open.values():
            segment.writer.close()


def draft(lane: int, number: int, said: bytes = b"\x9b" + bytes(11)) -> Draft:
    return Draft(
        Route(b"m" * 32, b"a" * 32, lane), said, Kind.ITEM, bytes([number]) * 16, encode((0, b"field"))
    )


def test_commit_routes_and_writes_provenance_once_per_segment(appender):
    appender.commit([draft(1, 0)])
    first, second = appender.commit([draft(1, 1), draft(2, 2), draft(1, 3)])
    (third,) = appender.commit([draft(1, 4)])
    assert third.segment is first.segment
    assert [placed.segment.writer.header.lane for placed in (first, second)] == [1, 2]
    assert [list(placed.which) for placed in (first, second, third)] == [[0, 2], [1], [0]]
    for segment, offsets, numbers in (
        (first.segment, first.offsets + third.offsets, [1, 3, 4]),
        (second.segment, second.offsets, [2]),
    ):
        said, *entries = look(segment.writer.file.path)[2]
        assert said.kind == Kind.PROVENANCE and {entry.kind for entry in entries} == {Kind.ITEM}
        assert [(entry.offset, entry.identity[0]) for entry in entries[-len(numbers) :]] == list(
            zip(offsets, numbers, strict=True)
        )
    assert {segment.writer.header.lane for segment in appender.open.values()} == {1, 2}


def test_each_entry_names_its_provenance_by_its_segments_number_for_it(appender):
    other = b"\x9b" + bytes(10) + b"\1"
    appender.commit([draft(2, 0, other)])
    placed = appender.commit([draft(1, 1), draft(1, 2, other), draft(2, 3), draft(2, 4, other)])
    numbers = {}
    for segment, _, _ in placed:
        for entry in look(segment.writer.file.path)[2]:
            numbers[entry.identity[0]] = decode(entry.payload)[0]
    assert {number: numbers[number] for number in range(1, 5)} == {1: 0, 2: 1, 3: 1, 4: 0}


def test_a_refused_commit_leaves_nothing_in_any_segment(appender, disk):
    appender.commit([draft(1, 1), draft(2, 2)])
    disk.room = 5000
    big = draft(2, 4)._replace(payload=bytes(2000))
    with pytest.raises(DiskFull):
        appender.commit([draft(1, 3, b"\x9b" + bytes(10) + b"\1"), big])
    disk.room = 1 << 40
    for segment in appender.open.values():
        entries = look(segment.writer.file.path)[2]
        assert [entry.identity[0] for entry in entries if entry.kind == Kind.ITEM] == [
            segment.writer.header.lane
        ]
    appender.commit([draft(1, 3, b"\x9b" + bytes(10) + b"\1")])
    segment = appender.open[draft(1, 0).route]
    kinds = [entry.kind for entry in look(segment.writer.file.path)[2]]
    assert kinds == [Kind.PROVENANCE, Kind.ITEM, Kind.PROVENANCE, Kind.ITEM]


def test_full_segments_are_rolled_with_their_provenance_again(appender):
    placed = appender.commit([draft(1, number) for number in range(80)])
    (segment,) = appender.due()
    appender.roll(segment)
    assert appender.open == {}
    _, found, entries = look(segment.writer.file.path)
    assert found.damage == () and found.seal is not None
    assert entries[0].payload == entries[-1].payload and entries[-1].kind == Kind.PROVENANCE
    again = appender.commit([draft(1, 99)])
    assert again[0].segment.writer.header.sequence == placed[0].segment.writer.header.sequence + 1
    segment.writer.close()


def test_a_permission_problem_says_so(tmp_path):
    class Refusing(Disk):
        def open(self, path, flags):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(StoreError, match="Permission denied"):
        SegmentWriter.create(Refusing(), tmp_path, HEADER)
