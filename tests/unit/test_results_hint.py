"""Hints: their bytes, what a damaged one costs, and that they are what an index is built from."""

import struct
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import xxhash
from attrs import evolve

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull, SyncFailed
from fafo_run.log.reader import seal_of
from fafo_run.log.recovery import recover
from fafo_run.results.files import ResultsFiles
from fafo_run.results.hint import read_hint
from fafo_run.results.loading import Loader
from fafo_run.results.place import OUTPUT_RANK, Place, places
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.log_nouns import failure, look, name_of, record

GOLDEN = Path(__file__).parents[1] / "golden" / "log"
FAILED = [evolve(record(7, failure()), retry=retry) for retry in (0, 2)]


@pytest.fixture
def directory(tmp_path):
    """A run of two sealed segments of 8 records."""
    with RunDirectory.own(tmp_path / "run") as directory:
        results = Results(directory)
        results.append([record(number) for number in range(6)] + FAILED)
        results.append([record(10), record(11, lane=9)])
        results.close(clean=True)
        yield directory


def hint(directory, number: int = 1) -> Path:
    return directory.results / f"{number:08d}.hint"


def load(directory, number: int = 1, *, keep: bool = True):
    files = ResultsFiles(directory.disk, directory.results)
    segment = files.fresh(number)
    assert segment is not None
    try:
        seal = seal_of(segment.file, segment.header)
        assert seal is not None
        return read_hint(directory.disk, segment, seal, keep=keep)
    finally:
        segment.file.close()


def forget_the_index(directory) -> None:
    for file in directory.index.iterdir():
        file.unlink()


def found_in(directory) -> dict[bytes, object]:
    results = Results(directory)
    found = {one.identity: one for one in results.effective()}
    assert {name: results.find(name) for name in found} == found
    results.close(clean=True)
    return found


ALL = {one.identity: one for one in [*map(record, range(6)), FAILED[1], record(10), record(11, lane=9)]}


def test_a_stranger_reads_a_hint(directory):
    """From docs/format.md alone."""
    data = hint(directory).read_bytes()
    segment = (directory.results / "00000001.seg").read_bytes()
    magic, version, zero, uuid, size, digest, count, length = struct.unpack_from("<8sII16sQQQQ", data)
    assert (magic, version, zero, count) == (b"FAFOHINT", 1, 0, 9)
    assert (uuid, size) == (segment[24:40], len(segment))
    assert digest == struct.unpack_from("<QQQ", segment, len(segment) - 24)[2]
    assert len(data) == 64 + 28 * count + length + 8
    rows = [struct.unpack_from("<16sQI", data, 64 + 28 * number) for number in range(count)]
    assert [name for name, *_ in rows] == sorted(name for name, *_ in rows)
    for name, offset, rank in rows:
        assert segment[offset + 16 : offset + 32] == name
        assert rank in ((2**32 - 1,) if segment[offset + 12] == 2 else (0, 2))
    assert [rank for name, _, rank in rows if name == name_of(7)] == [2, 0], "what counts stands first"
    undecodable, groups = msgspec.msgpack.decode(data[64 + 28 * count : -8])
    ((of, sums),) = groups
    assert (undecodable, of[:2]) == (0, ["judge", "elements"])
    assert (sums["outputs"], sums["failures"]) == (7, {"too_long": 2})
    assert struct.unpack("<Q", data[-8:])[0] == xxhash.xxh3_64_intdigest(data[:-8])


def test_a_hint_is_written_as_ever(tmp_path):
    (tmp_path / "00000001.seg").write_bytes((GOLDEN / "results.seg").read_bytes())
    files = ResultsFiles(Disk(), tmp_path)
    Loader(Disk(), files, owner=True).load(1)
    assert (tmp_path / "00000001.hint").read_bytes() == (GOLDEN / "results.hint").read_bytes()


@pytest.mark.parametrize("keep", [False, True])
def test_a_table_holds_every_record(directory, keep):
    table = load(directory, keep=keep)
    rows = list(places(table.part()))
    entries = look(directory.results / "00000001.seg")[2]
    expected = {(entry.identity, entry.offset) for entry in entries if entry.kind in (2, 3)}
    assert {(name, place.offset) for name, place in rows} == expected
    assert {place for name, place in rows if name == name_of(7)} == {
        Place(1, offset, rank)
        for rank, offset in zip((0, 2), sorted(at for of, at in expected if of == name_of(7)), strict=True)
    }
    assert all(place.rank == OUTPUT_RANK for name, place in rows if name != name_of(7))
    # In parts, it is the same.
    for edges in ((0, 1, 128, 256), (0, 200, 256)):
        parts = [table.part(*edge) for edge in pairwise(edges)]
        assert [one for part in parts for one in places(part)] == rows


def test_no_damaged_hint_is_read(directory):
    whole = hint(directory).read_bytes()
    for length in range(len(whole)):
        hint(directory).write_bytes(whole[:length])
        assert load(directory) is None, length
    for at in range(len(whole)):
        for bit in (1, 128):
            hint(directory).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            assert load(directory) is None, at
    hint(directory).write_bytes(whole + b"\0")
    assert load(directory) is None
    hint(directory).write_bytes(whole)
    assert load(directory) is not None


def test_no_foreign_hint_is_read(directory):
    hint(directory, 2).rename(hint(directory))
    assert load(directory) is None


@pytest.mark.parametrize("spoil", ["gone", "cut", "flipped", "foreign"])
def test_a_hint_that_is_no_good_is_made_anew(directory, spoil):
    whole = hint(directory).read_bytes()
    if spoil == "gone":
        hint(directory).unlink()
    else:
        flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
        damaged = {"cut": whole[:-9], "flipped": flipped, "foreign": hint(directory, 2).read_bytes()}
        hint(directory).write_bytes(damaged[spoil])
    forget_the_index(directory)
    reader = open_reader(directory.path)
    assert {name: reader.find(name) for name in ALL} == ALL
    reader.close()
    assert not hint(directory).exists() or hint(directory).read_bytes() != whole, "a reader writes nothing"
    assert found_in(directory) == ALL
    assert hint(directory).read_bytes() == whole


class Reads(Disk):
    """Counts the bytes that are read of segments."""

    def __init__(self) -> None:
        self.bytes = 0
        self.names: dict[int, str] = {}

    def open(self, path, flags):
        fd = super().open(path, flags)
        self.names[fd] = path.suffix
        return fd

    def pread(self, fd, length, offset):
        data = super().pread(fd, length, offset)
        if self.names.get(fd) == ".seg":
            self.bytes += len(data)
        return data


def fill(path: Path, number: int) -> int:
    """Write two segments of many records and stop cleanly; return their size."""
    with RunDirectory.own(path) as directory:
        directory.mark_running()
        results = Results(directory)
        for first in (0, number):
            results.append([record(at, suffix=(5,) * 100) for at in range(first, first + number)])
            results.seal()
        results.close(clean=True)
        directory.mark_stopped()
        return sum(file.stat().st_size for file in directory.results.glob("*.seg"))


@pytest.mark.parametrize("indexed", [True, False])
def test_opening_reads_no_sealed_segment(tmp_path, indexed):
    """However many records there are: a header and a seal of each segment, a few times over."""
    read = []
    for number in (100, 400):
        path = tmp_path / str(number)
        size = fill(path, number)
        disk = Reads()
        with RunDirectory.own(path, disk) as directory:
            if not indexed:
                forget_the_index(directory)
            recover(directory)
            results = Results(directory)
            assert results.summary().total.outputs == 2 * number
            assert results.has_output(name_of(0)) and not results.has_output(name_of(2 * number))
            results.close(clean=True)
        read.append(disk.bytes)
        assert disk.bytes < size / 2
    assert read[0] == read[1]


def test_an_index_from_hints_is_the_one_that_was_filled(directory):
    def contents():
        results = Results(directory)
        try:
            index, names = results._index, [*ALL, name_of(99)]
            merged = {
                uuid: (of.sequence, of.size, of.tally.pack(), of.lost.pack())
                for uuid, of in index.merged().items()
            }
            return merged, index.find(names), {name: index.earlier(name) for name in names}
        finally:
            results.close(clean=True)

    before = contents()
    forget_the_index(directory)
    assert contents() == before
    assert [place.rank for place in before[2][name_of(7)]] == [0]


def test_a_record_that_rotted_is_noticed_in_spite_of_its_hint(directory):
    file = directory.results / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[data.index(b"k3")] ^= 1
    file.write_bytes(data)
    results = Results(directory)
    assert name_of(3) in results, "nobody has looked yet"
    assert results.find(name_of(3)) is None
    assert name_of(3) not in results and results.find(name_of(4)) == record(4)
    assert results.append([record(3)]) == 0, "what can't be read is done again"
    results.close(clean=True)
    assert found_in(directory) == ALL
    assert load(directory).count == 8


def test_a_hint_is_whole_before_the_index_has_its_segment(tmp_path):
    calls: list[str] = []

    class Tracing(Disk):
        def rename(self, old, new):
            calls.append(f"rename {new.name}")
            super().rename(old, new)

        def fdatasync(self, fd):
            calls.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink().name}")
            super().fdatasync(fd)

        def sync_dir(self, path):
            calls.append(f"sync {path.name}/")
            super().sync_dir(path)

    with RunDirectory.own(tmp_path / "run", Tracing()) as directory:
        results = Results(directory)
        results.append([record(1)])
        calls.clear()
        merge = results._index.merge
        results._index.merge = lambda *of: (calls.append("merge"), merge(*of))
        results.seal()
        assert calls[calls.index("sync 00000001.hint.tmp") :] == [
            "sync 00000001.hint.tmp", "rename 00000001.hint", "sync results/", "merge",
        ]  # fmt: skip
        results.close()


def test_a_refused_sync_of_a_hint_ends_it(tmp_path):
    """The disk can't keep what it took: that it is only a hint says nothing for the rest."""

    class Failing(Disk):
        def fdatasync(self, fd):
            if Path(f"/proc/self/fd/{fd}").readlink().name.endswith(".hint.tmp"):
                raise OSError(5, "")
            super().fdatasync(fd)

    with RunDirectory.own(tmp_path / "run", Failing()) as directory:
        results = Results(directory)
        results.append([record(1)])
        with pytest.raises(SyncFailed):
            results.seal()
        with pytest.raises(SyncFailed):
            results.append([record(2)])
        assert results.find(name_of(1)) == record(1)
        results.close(clean=True)


def test_no_room_for_a_hint(tmp_path):
    class Full(Disk):
        full = False

        def pwrite(self, fd, data, offset):
            if self.full and bytes(data[:8]) == b"FAFOHINT":
                raise OSError(28, "")
            return super().pwrite(fd, data, offset)

    disk = Full()
    with RunDirectory.own(tmp_path / "run", disk) as directory:
        results = Results(directory)
        results.append([record(1), record(2)])
        disk.full = True
        with pytest.raises(DiskFull):
            results.seal()
        assert results.find(name_of(1)) == record(1)
        results.close()
        disk.full = False
        assert recover(directory).sealed == 0
        assert found_in(directory) == {name_of(number): record(number) for number in (1, 2)}
