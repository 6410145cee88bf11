"""`duplicates()`: damaged and vanished results are said before a run mends or forgets them."""

import os

import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, DiskFull
from fafo_run.log.recovery import recover
from fafo_run.results.audit import Duplicates
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.log_nouns import look, name_of, record

TORN = "not sealed, though {}: its end is damaged or gone"


@pytest.fixture
def path(tmp_path):
    """A run of three segments that stopped cleanly; two are of one route."""
    path = tmp_path / "run"
    with RunDirectory.own(path) as directory:
        directory.mark_running()
        results = Results(directory)
        results.append([record(number) for number in range(20)])
        results.seal()
        results.append([record(number) for number in range(20, 40)])
        results.append([record(number, lane=9) for number in range(40, 60)])
        results.close(clean=True)
        directory.mark_stopped()
    assert check(path).damaged == ()
    return path


def check(path) -> Duplicates:
    reader = open_reader(path)
    try:
        return reader.duplicates()
    finally:
        reader.close()


def segment(path, number: int):
    return path / "results" / f"{number:08d}.seg"


def cut(path, number: int, by: int) -> None:
    os.truncate(segment(path, number), segment(path, number).stat().st_size - by)


def spoil(path, number: int, at: int, data: bytes) -> None:
    with segment(path, number).open("r+b") as handle:
        handle.seek(at)
        handle.write(data)


def forget_the_index(path) -> None:
    for file in (path / "index").iterdir():
        file.unlink()


def kill(path) -> None:
    """Let the last run be one that was killed."""
    with RunDirectory.own(path) as directory:
        directory.mark_running()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_sealed_segment_that_was_cut(path, number, killed):
    cut(path, number, 700)
    if killed:
        kill(path)
    size = segment(path, number).stat().st_size
    name = segment(path, number).name
    assert check(path).damaged == (
        f"{name}: {size} bytes, {size + 700} when the index took it in",
        f"{name}: {TORN.format('the index has it as sealed')}",
    )
    forget_the_index(path)
    if number == 1:
        assert check(path).damaged == (f"{name}: {TORN.format('a later segment follows it')}",)
    elif killed:
        assert check(path).damaged == (), "nobody can tell this from an interrupted write"
    else:
        assert check(path).damaged == (f"{name}: {TORN.format('the last stop was clean')}",)


@pytest.mark.parametrize("at", range(8))
def test_every_bit_of_a_seal_counts(path, at):
    size = segment(path, 3).stat().st_size
    data = segment(path, 3).read_bytes()
    spoil(path, 3, size - 64 + 8 * at, bytes([data[size - 64 + 8 * at] ^ 1]))
    assert check(path).damaged == (f"00000003.seg: {TORN.format('the index has it as sealed')}",)


@pytest.mark.parametrize("killed", [False, True])
def test_a_segment_without_a_header(path, killed):
    if killed:
        kill(path)
    spoil(path, 2, 0, bytes(4096))
    size = segment(path, 2).stat().st_size
    assert check(path).damaged == (
        "00000002.seg: no readable header",
        f"00000002.seg: gone, or its header is; {size} bytes in the index",
    )
    forget_the_index(path)
    assert check(path).damaged == ("00000002.seg: no readable header",)


def test_one_copy_of_a_header(path):
    spoil(path, 2, 100, b"\xff")
    assert check(path).damaged == ("00000002.seg: one copy of the header is damaged",)


@pytest.mark.parametrize("killed", [False, True])
def test_a_segment_that_is_gone(path, killed):
    if killed:
        kill(path)
    size = segment(path, 3).stat().st_size
    segment(path, 3).unlink()
    expected = (f"00000003.seg: gone, or its header is; {size} bytes in the index",)
    assert check(path).damaged == expected
    with RunDirectory.own(path) as directory:
        recover(directory)
        results = Results(directory)
        assert results.findings == (f"results/{expected[0]}",)
        assert name_of(40) not in results and name_of(39) in results
        assert results.append([record(40)]) == 0
        assert not segment(path, 3).exists() and segment(path, 4).exists(), "the index knew that number"
        assert results.duplicates().damaged == ()
        results.close(clean=True)
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        assert results.findings == ()
        results.close(clean=True)


def test_a_renamed_segment_is_not_gone(path):
    segment(path, 3).rename(segment(path, 7))
    assert check(path).damaged == ()


def test_bytes_behind_a_seal(path):
    spoil(path, 2, segment(path, 2).stat().st_size, b"junk" * 4)
    size = segment(path, 2).stat().st_size
    assert check(path).damaged == (
        f"00000002.seg: 16 bytes at {size - 16}: the file ends within an entry",
        f"00000002.seg: {size} bytes, {size - 16} when the index took it in",
    )


def test_recovery_keeps_what_it_cuts_and_says_that_it_was_sealed(path):
    cut(path, 2, 700)
    data = segment(path, 2).read_bytes()
    with RunDirectory.own(path) as directory:
        report = recover(directory)
        end = look(segment(path, 2))[1].gaps
        assert end == () and report.torn == 1 and report.damaged and report.dropped_bytes == 0
        (line,) = report.findings
        assert "interrupted" not in line and "the last stop was clean" in line
        (kept,) = directory.quarantine.glob("*.bin")
        assert data.endswith(kept.read_bytes()) and kept.with_suffix(".reason").read_text() == line + "\n"
        results = Results(directory)
        (told,) = results.findings
        assert told.startswith("results/00000002.seg:") and "when the index took it in" in told
        lost = [number for number in range(60) if name_of(number) not in results]
        assert lost and min(lost) >= 20
        results.append([record(number) for number in lost])
        results.close(clean=True)
    found = check(path)
    assert found.damaged == () and found.identities == () and found.outputs == 60


def test_a_killed_run_loses_no_byte_of_a_segment_that_only_the_index_knows_as_sealed(path):
    cut(path, 3, 700)
    kill(path)
    data = segment(path, 3).read_bytes()
    with RunDirectory.own(path) as directory:
        report = recover(directory)
        assert report.torn == 0 and report.dropped_bytes > 0
        (kept,) = directory.quarantine.glob("*.bin")
        assert data.endswith(kept.read_bytes())
        results = Results(directory)
        (told,) = results.findings
        assert told.startswith("results/00000003.seg:") and "when the index took it in" in told
        results.close(clean=True)


def test_what_a_run_writes_is_not_damaged(path):
    with RunDirectory.own(path) as directory:
        directory.mark_running()
        results = Results(directory)
        results.append([record(70)])
        assert check(path).damaged == ()
        with segment(path, 4).open("ab") as handle:
            handle.write(b"half an entry")
        assert check(path).damaged == ()
        results.close()
    assert check(path).damaged == (), "killed: an interrupted write"
    (path / "RUNNING").unlink()
    assert check(path).damaged == (f"00000004.seg: {TORN.format('the last stop was clean')}",)


def test_a_run_that_begins_while_it_is_checked(path, monkeypatch):
    """The segment is unsealed when it is read, and sealed before it is judged."""
    kill(path)
    cut(path, 3, 700)
    forget_the_index(path)
    reader = open_reader(path)
    idle = reader._is_idle

    def later() -> bool:
        with RunDirectory.own(path) as directory:
            recover(directory)
            directory.mark_stopped()
        return idle()

    monkeypatch.setattr(reader, "_is_idle", later)
    assert reader.duplicates().damaged == ()
    reader.close()


def test_a_segment_that_was_given_up_is_not_merged(tmp_path):
    class Failing(Disk):
        room = 1 << 40

        def pwrite(self, fd, data, offset):
            if offset + len(data) > self.room:
                super().pwrite(fd, data[:50], offset)
                raise OSError(28, "")
            return super().pwrite(fd, data, offset)

        def truncate(self, fd, size):
            raise OSError(5, "") if size else super().truncate(fd, size)

    disk = Failing()
    with RunDirectory.own(tmp_path / "run") as directory:
        directory.disk = disk
        directory.mark_running()
        results = Results(directory)
        results.append([record(1)])
        disk.room = 5000
        with pytest.raises(DiskFull):
            results.append([record(number) for number in range(2, 40)])
        disk.room = 1 << 40
        results.append([record(2)])
        results.close()
    with RunDirectory.own(tmp_path / "run") as directory:
        recover(directory)
        results = Results(directory)
        assert results.findings == () and results.duplicates().damaged == ()
        assert results.find(name_of(1)) == record(1) and results.find(name_of(2)) == record(2)
        results.close(clean=True)
