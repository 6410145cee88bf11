"""The one layer between the log and the operating system; it knows nothing of segments.

`Disk` is the bare calls, so that a test or a simulated disk can replace each; `File` adds the loops and turns
what the system refuses into errors that say what to do.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from fafo_build.errors import Problem, StoreError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
T = TypeVar("T")
P = ParamSpec("P")


class DiskFull(StoreError):
    """The disk, a quota or a limit on file sizes leaves no room; what was acknowledged is safe."""


class SyncFailed(StoreError):
    """The disk couldn't confirm a write. Never tried again: the kernel has already dropped the pages."""


class StoreGone(SyncFailed):
    """The run's folder, or a file of it, was deleted or moved while the run worked: nothing more is kept."""


class Disk:
    """The calls as the system has them: each raises `OSError`, and a write may be short."""

    def open(self, path: Path, flags: int) -> int:
        """Return a file descriptor; files are made with mode 0o644."""
        # Not to block is for a pipe that somebody has put in a file's place; to files it means nothing.
        return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)

    def close(self, fd: int) -> None:
        """Close a file descriptor."""
        os.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Return up to `length` bytes."""
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write some of `data` and return how many bytes that was."""
        return os.pwrite(fd, data, offset)

    def size(self, fd: int) -> int:
        """Return a file's size in bytes."""
        return os.fstat(fd).st_size

    def links(self, fd: int) -> int:
        """Return how many names a file has; none when it was deleted."""
        return os.fstat(fd).st_nlink

    def fdatasync(self, fd: int) -> None:
        """Return when the file's bytes and size are on the disk."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file."""
        os.ftruncate(fd, size)

    def map(self, fd: int, length: int) -> mmap.mmap:
        """Map the first `length` bytes, shared and writable. Only for bytes that are already synced."""
        return mmap.mmap(fd, length)

    def lock(self, fd: int, *, exclusive: bool) -> bool:
        """Take a flock without waiting; False when another holds it."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def inode(self, path: Path | int) -> tuple[int, int] | None:
        """Return (device, inode) of a path or of an open file, None when nothing is there."""
        try:
            status = os.fstat(path) if isinstance(path, int) else path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def is_file(self, path: Path) -> bool:
        """Return whether a regular file is there."""
        return path.is_file()

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder is there."""
        return path.is_dir()

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(entry.name for entry in path.iterdir())

    def mkdir(self, path: Path) -> None:
        """Make a folder; its parent must be there."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Rename, in place of what `new` was."""
        old.replace(new)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def sync_dir(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class File:
    """An open file that never gives half a write for a whole one."""

    def __init__(self, disk: Disk, path: Path, *, write: bool = False, create: bool = False) -> None:
        """Open `path`. `create` makes it or empties it.

        Raises `StoreError`; without `create` also `FileNotFoundError`, since a reader may come too late.
        """
        self.disk = disk
        self.path = path
        flags = os.O_RDWR if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        try:
            self.fd = disk.open(path, flags)
        except FileNotFoundError as error:
            if create:
                raise gone(path) from error
            raise
        except OSError as error:
            raise refused(path, error) from error

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes, fewer only at the file's end."""
        parts: list[bytes] = []
        while length > 0:
            part = refusing(self.path, self.disk.pread, self.fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write all of `data`, or raise `DiskFull` or `StoreError` with some of it written."""
        write_all(self.disk, self.path, self.fd, data, offset)

    def size(self) -> int:
        """Return the size in bytes."""
        return refusing(self.path, self.disk.size, self.fd)

    def truncate(self, size: int) -> None:
        """Cut the file at `size`."""
        refusing(self.path, self.disk.truncate, self.fd, size)

    def sync(self) -> None:
        """Return when all that was written is on the disk. Raises `SyncFailed`; then nothing is certain.

        A file that was deleted while it is open takes every write and sync, and ends with the process: that
        raises `StoreGone`.
        """
        syncing(self.path, self.disk.fdatasync, self.fd)
        # Some file systems count no names at all: then the name itself decides.
        if not refusing(self.path, self.disk.links, self.fd) and self.disk.inode(self.path) is None:
            raise gone(self.path)

    def close(self) -> None:
        """Close; safe to call twice."""
        if self.fd >= 0:
            self.disk.close(self.fd)
            self.fd = -1


def refusing(path: Path, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what the call returns; what the system refuses becomes a `StoreError`, as `refused` says it."""
    try:
        return call(*args, **kwargs)
    except OSError as error:
        raise refused(path, error) from error


def refused(path: Path, error: OSError) -> StoreError:
    """Return what the system refused as `DiskFull`, `StoreGone` or a plain `StoreError`."""
    if isinstance(error, FileNotFoundError):
        return gone(path)
    reason = os.strerror(error.errno or 0)
    if error.errno in _FULL:
        message = f"no room to write: {reason}"
        cure = "free some space and start the run again; what was recorded is safe"
        return DiskFull(Problem(message, file=str(path), cure=cure))
    cure = "check the disk and the folder's permissions, then start the run again"
    return StoreError(Problem(f"the disk refused: {reason}", file=str(path), cure=cure))


def gone(path: Path, *, folder: bool = False) -> StoreGone:
    """Return the error for a file, or a folder, that isn't there any more."""
    what = "the run's folder" if folder or not path.parent.is_dir() else "a file of the run"
    message = f"{what} is gone: it was deleted or moved while the run worked"
    cure = "put it back, or start the run again: what isn't recorded is done again"
    return StoreGone(Problem(message, file=str(path), cure=cure))


def write_all(disk: Disk, path: Path, fd: int, data: bytes, offset: int = 0) -> None:
    """Write all of `data`, or raise `DiskFull` or `StoreError` with some of it written."""
    left = memoryview(data)
    while left:
        written = refusing(path, disk.pwrite, fd, left, offset)
        offset += written
        left = left[written:]


def syncing(path: Path, call: Callable[P, None], /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a sync; whatever the system refuses becomes `SyncFailed`."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        message = f"the disk couldn't confirm a write: {os.strerror(error.errno or 0)}"
        cure = "check the disk (its log, its free space), then start the run again: it re-reads what is there"
        raise SyncFailed(Problem(message, file=str(path), cure=cure)) from error


def sync_dir(disk: Disk, path: Path) -> None:
    """Return when the names in a folder are on the disk. Raises `SyncFailed`."""
    if not disk.is_folder(path):
        raise gone(path, folder=True)
    syncing(path, disk.sync_dir, path)


def make_dir(disk: Disk, path: Path) -> None:
    """Make a folder and its parents as far as they are missing, durably. Raises `StoreError`."""
    if refusing(path, disk.is_folder, path):
        return
    # Asked in this order: another process may make the folder between the two.
    if refusing(path, disk.inode, path) is not None and not disk.is_folder(path):
        raise _in_the_way(path, "a file")
    if path.parent != path:
        make_dir(disk, path.parent)
    try:
        disk.mkdir(path)
    except FileExistsError as error:
        if not disk.is_folder(path):
            raise _in_the_way(path, "a link to nowhere") from error
    except OSError as error:
        raise refused(path, error) from error
    sync_dir(disk, path.parent)


def _in_the_way(path: Path, what: str) -> StoreError:
    cure = "move it away, or mend what it leads to, then start the run again"
    return StoreError(Problem(f"{what} is where a folder has to be", file=str(path), cure=cure))


def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """Write a whole file so that a reader, or a crash, sees the old bytes or the new ones."""
    temporary = path.with_name(path.name + ".tmp")
    file = File(disk, temporary, write=True, create=True)
    try:
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    refusing(path, disk.rename, temporary, path)
    sync_dir(disk, path.parent)


def read_file(disk: Disk, path: Path) -> bytes | None:
    """Return a small file's bytes, None when it isn't there."""
    try:
        file = File(disk, path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def said(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a file's bytes; an empty one when they say anything else: people help."""
    try:
        # Stricter than Python's own: a number is a finite one.
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
