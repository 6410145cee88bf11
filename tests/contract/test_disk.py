"""What the log relies on in a `Disk`, held against the real one and the simulated one."""

from __future__ import annotations

import inspect
import os
import struct
from pathlib import Path

import pytest

from fafo_run.log.fs import Disk
from tests.disk.simulated import SimulatedDisk

RW = os.O_RDWR
NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    """A disk and an empty folder on it."""
    if request.param == "real":
        return Disk(), tmp_path
    disk = SimulatedDisk()
    disk.mkdir(Path("/simulated"))
    return disk, Path("/simulated")


def write(disk: Disk, path: Path, data: bytes) -> None:
    fd = disk.open(path, NEW)
    assert disk.pwrite(fd, memoryview(data), 0) == len(data)
    disk.close(fd)


def read(disk: Disk, path: Path) -> bytes:
    fd = disk.open(path, os.O_RDONLY)
    data = disk.pread(fd, 1 << 20, 0)
    disk.close(fd)
    return data


def test_the_simulated_disk_has_every_call() -> None:
    public = {name for name, _ in inspect.getmembers(Disk, inspect.isfunction) if not name.startswith("_")}
    assert public <= set(vars(SimulatedDisk)), "a call would go past the simulation"


def test_bytes(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    fd = disk.open(folder / "a", NEW)
    assert (disk.size(fd), disk.links(fd), disk.pread(fd, 10, 0)) == (0, 1, b"")
    assert disk.pwrite(fd, memoryview(b"hello"), 0) == 5
    assert disk.pwrite(fd, memoryview(b"!"), 1000) == 1
    assert disk.size(fd) == 1001
    assert disk.pread(fd, 7, 0) == b"hello\0\0"
    assert disk.pread(fd, 7, 999) == b"\0!"
    assert disk.pread(fd, 7, 5000) == b""
    disk.truncate(fd, 3)
    disk.fdatasync(fd)
    assert (disk.size(fd), disk.pread(fd, 99, 0)) == (3, b"hel")
    disk.truncate(fd, 5)
    assert disk.pread(fd, 99, 0) == b"hel\0\0"
    disk.close(fd)
    with pytest.raises(OSError):
        disk.size(fd)


def test_open(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    with pytest.raises(FileNotFoundError):
        disk.open(folder / "a", RW)
    with pytest.raises(FileNotFoundError):
        disk.open(folder / "no" / "a", NEW)
    write(disk, folder / "a", b"old")
    fd = disk.open(folder / "a", os.O_RDONLY)
    with pytest.raises(OSError):
        disk.pwrite(fd, memoryview(b"x"), 0)
    kept = disk.open(folder / "a", RW | os.O_CREAT)
    assert disk.pread(kept, 9, 0) == b"old"
    emptied = disk.open(folder / "a", NEW)
    assert disk.pread(kept, 9, 0) == disk.pread(emptied, 9, 0) == b""
    with pytest.raises(FileExistsError):
        disk.open(folder / "a", NEW | os.O_EXCL)
    with pytest.raises(IsADirectoryError):
        disk.open(folder, RW)
    for one in (fd, kept, emptied, disk.open(folder, os.O_RDONLY)):
        disk.close(one)


def test_names(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    assert disk.listdir(folder) == []
    disk.mkdir(folder / "in")
    with pytest.raises(FileExistsError):
        disk.mkdir(folder / "in")
    with pytest.raises(FileNotFoundError):
        disk.mkdir(folder / "no" / "in")
    write(disk, folder / "b", b"b")
    write(disk, folder / "a", b"a")
    assert disk.listdir(folder) == ["a", "b", "in"]
    assert [disk.is_file(folder / name) for name in ("a", "in", "x")] == [True, False, False]
    assert [disk.is_folder(folder / name) for name in ("a", "in", "x")] == [False, True, False]
    assert disk.inode(folder / "x") is None and disk.inode(folder / "a" / "x") is None
    assert disk.inode(folder / "a") != disk.inode(folder / "b") != disk.inode(folder / "in")
    disk.unlink(folder / "b")
    with pytest.raises(FileNotFoundError):
        disk.unlink(folder / "b")
    with pytest.raises(IsADirectoryError):
        disk.unlink(folder / "in")
    disk.sync_dir(folder)
    for of in (disk.sync_dir, disk.listdir):
        with pytest.raises(FileNotFoundError):
            of(folder / "x")
        with pytest.raises(NotADirectoryError):
            of(folder / "a")


def test_rename(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    disk.mkdir(folder / "in")
    write(disk, folder / "a", b"a")
    write(disk, folder / "b", b"b")
    fd, replaced = disk.open(folder / "a", RW), disk.open(folder / "b", RW)
    was = disk.inode(folder / "a")
    disk.rename(folder / "a", folder / "b")
    assert disk.inode(folder / "b") == was == disk.inode(fd)
    assert (disk.links(fd), disk.links(replaced), disk.pread(replaced, 9, 0)) == (1, 0, b"b")
    disk.rename(folder / "b", folder / "in" / "c")
    assert disk.listdir(folder) == ["in"] and read(disk, folder / "in" / "c") == b"a"
    with pytest.raises(FileNotFoundError):
        disk.rename(folder / "b", folder / "c")
    write(disk, folder / "d", b"d")
    with pytest.raises(IsADirectoryError):
        disk.rename(folder / "d", folder / "in")
    disk.close(fd)
    disk.close(replaced)


def test_a_file_without_a_name_lives_on(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    fd = disk.open(folder / "a", NEW)
    disk.unlink(folder / "a")
    disk.pwrite(fd, memoryview(b"still"), 0)
    disk.fdatasync(fd)
    assert (disk.links(fd), disk.pread(fd, 9, 0)) == (0, b"still")
    write(disk, folder / "a", b"other")
    assert disk.pread(fd, 9, 0) == b"still" and disk.inode(folder / "a") != disk.inode(fd)
    disk.close(fd)


def test_a_mapping_is_the_file(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    fd = disk.open(folder / "a", NEW)
    disk.pwrite(fd, memoryview(bytes(range(100))), 0)
    with pytest.raises(ValueError):
        disk.map(fd, 101)
    first, second = disk.map(fd, 100), disk.map(fd, 50)
    assert (len(first), len(second)) == (100, 50)
    first[10:14] = b"abcd"
    memoryview(second)[14:16] = b"ef"
    assert disk.pread(fd, 8, 9) == b"\x09abcdef\x10"
    assert struct.unpack_from("<4s", first, 10) == struct.unpack_from("<4s", second, 10) == (b"abcd",)
    disk.pwrite(fd, memoryview(b"WXYZ"), 48)
    assert bytes(first[46:54]) == b"./WXYZ45" and bytes(second[46:]) == b"./WX"
    first[0:1] = b"!"
    first.close()
    second.close()
    disk.pwrite(fd, memoryview(b"more"), 100)
    assert disk.pread(fd, 1, 0) == b"!" and disk.size(fd) == 104
    third = disk.map(fd, 104)
    third[100:104] = b"MORE"
    disk.fdatasync(fd)
    third.close()
    disk.close(fd)
    assert read(disk, folder / "a")[100:] == b"MORE"


def test_locks(place: tuple[Disk, Path]) -> None:
    disk, folder = place
    write(disk, folder / "a", b"")
    one, two, three = (disk.open(folder / "a", os.O_RDONLY) for _ in range(3))
    assert disk.lock(one, exclusive=False) and disk.lock(two, exclusive=False)
    assert not disk.lock(three, exclusive=True)
    disk.close(two)
    assert disk.lock(one, exclusive=True) and disk.lock(one, exclusive=True)
    assert not disk.lock(three, exclusive=False) and not disk.lock(three, exclusive=True)
    disk.close(one)
    assert disk.lock(three, exclusive=True)
    disk.close(three)
    over = disk.open(folder, os.O_RDONLY)
    assert disk.lock(over, exclusive=True)
    disk.close(over)
