"""A disk without room for the index: an error, or a slower look; never a process that is killed."""

from __future__ import annotations

import errno
import faulthandler
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from fafo_build.errors import StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import DiskFull
from fafo_run.results import environment
from fafo_run.results.reader import open_reader
from fafo_run.results.results import Results
from tests.log_nouns import name_of, record
from tests.mounts import mounting

PAGE = os.sysconf("SC_PAGE_SIZE")
RECORDS = 20
REFUSED = 3
"""The exit code of a child that got a `StoreError`."""


def make(path: Path) -> None:
    """A run that stopped cleanly."""
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        results.append([record(number) for number in range(RECORDS)])
        results.close(clean=True)


def write(path: Path) -> None:
    with RunDirectory.own(path) as directory:
        results = Results(directory)
        assert results.find(name_of(3)) == record(3)
        results.close(clean=True)


def read(path: Path) -> None:
    reader = open_reader(path)
    assert reader.summary().total.outputs == RECORDS and reader.find(name_of(3)) == record(3)
    reader.close()


def in_a_child(use: Callable[[Path], None], path: Path) -> int:
    """Return how a child ended: its exit code, or minus the signal that killed it."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        code = 1
        try:
            use(path)
            code = 0
        except StoreError:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sparse(index: Path) -> None:
    """Leave a lock.mdb without a block of its own, as LMDB itself makes it."""
    size = (index / "lock.mdb").stat().st_size
    (index / "lock.mdb").unlink()
    (index / "lock.mdb").touch()
    os.truncate(index / "lock.mdb", size)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounting(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "tmpfs") as disk:
        make(disk / "made")
        yield disk


def ends(disk: Path, use: Callable[[Path], None], spoil: Callable[[Path], None], pages: range) -> list[int]:
    """Return how `use` of a run ends with each of these numbers of pages left on the disk."""
    found = []
    for left in pages:
        shutil.copytree(disk / "made", disk / "run")
        spoil(disk / "run" / "index")
        status = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(status.f_bavail * status.f_frsize - left * PAGE))
        found.append(in_a_child(use, disk / "run"))
        (disk / "ballast").unlink()
        shutil.rmtree(disk / "run")
    return found


@pytest.mark.mounts
@pytest.mark.parametrize("spoil", [sparse, shutil.rmtree])
def test_a_writer_on_a_full_disk(disk: Path, spoil: Callable[[Path], None]) -> None:
    found = ends(disk, write, spoil, range(40))
    assert set(found) == {0, REFUSED} and found[0] == REFUSED and found[-1] == 0, found


@pytest.mark.mounts
@pytest.mark.parametrize("spoil", [sparse, shutil.rmtree])
def test_a_reader_on_a_full_disk_reads(disk: Path, spoil: Callable[[Path], None]) -> None:
    assert set(ends(disk, read, spoil, range(12))) == {0}


@pytest.mark.mounts
def test_a_full_disk_shows_a_lock_without_room(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
    assert -signal.SIGBUS in ends(disk, write, sparse, range(4))
    assert -signal.SIGBUS in ends(disk, read, sparse, range(4))


def test_what_is_reserved_is_what_lmdb_maps(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_readers=environment.MAX_READERS):
        assert (tmp_path / "lock.mdb").stat().st_size == environment.LOCK_SIZE


def refuse(number: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_said_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    make(tmp_path / "run")
    sparse(tmp_path / "run" / "index")
    monkeypatch.setattr(os, "posix_fallocate", refuse(number))
    with pytest.raises(DiskFull, match="no room to write"):
        write(tmp_path / "run")
    read(tmp_path / "run")


def test_a_file_system_that_reserves_nothing_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    make(tmp_path / "run")
    write(tmp_path / "run")
    read(tmp_path / "run")


def test_a_reader_that_may_not_write_reads_by_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB takes no lock on a file system that is mounted to be read: there is nothing to reserve."""
    make(tmp_path / "run")
    real = os.open

    def opened(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    reader = open_reader(tmp_path / "run")
    assert reader.is_indexed
    reader.close()


def test_the_lock_of_whoever_has_it_open_is_kept(tmp_path: Path) -> None:
    """A process that closes any descriptor of a file loses its own locks on it: fcntl's are like that."""
    make(tmp_path / "run")
    reader = open_reader(tmp_path / "run")
    other = open_reader(tmp_path / "run")
    inode = (tmp_path / "run" / "index" / "lock.mdb").stat().st_ino
    held = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    assert any("POSIX" in line and f" {os.getpid()} " in line for line in held)
    other.close()
    reader.close()
