"""One owner per store: a flock on LOCK and on the run's folder. What LOCK contains is only a message.

The folder is locked too, since a LOCK that someone deletes can be made anew beside the one that is held.
Those who only append to the queue hold neither; `folder_lock` keeps them and the owner from taking one
number for two segments.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fafo_build.errors import Problem, StoreError
from fafo_run.log.fs import Disk, gone, read_file, refused, refusing, said, write_all

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "9p"})
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")
_LOCKS = Path("/proc/locks")
_TRIES = 8
_FOLDER_WAIT = 30.0
"""Seconds to wait for a folder's lock; it is held for a few disk syncs at most."""
_FOLDER_POLL = 0.002


class StoreBusy(StoreError):
    """Another run uses this store; wait for it or stop it."""


class StoreLock:
    """A held lock; the system frees it when the process ends, however it ends."""

    def __init__(self, disk: Disk, lock_fd: int, folder_fd: int) -> None:
        self._disk = disk
        self._fds = [lock_fd, folder_fd]

    @classmethod
    def acquire(cls, disk: Disk, path: Path, *, force: bool = False) -> StoreLock:
        """Lock without waiting. `path` is the LOCK file, its folder must be there.

        Raises `StoreBusy` when another process, or another lock in this one, holds it, and `StoreError` on a
        network file system unless `force`d: its locks don't hold everywhere. `DiskFull` when not even the
        message has room: no run can work there.
        """
        if not force:
            refuse_network(path.parent)
        folder_fd = refusing(path, disk.open, path.parent, os.O_RDONLY)
        try:
            if not refusing(path, disk.lock, folder_fd, exclusive=True):
                raise busy(path)
            lock_fd = _lock_file(disk, path)
        except BaseException:
            disk.close(folder_fd)
            raise
        lock = cls(disk, lock_fd, folder_fd)
        message = json.dumps({"pid": os.getpid(), "started": int(time.time()), "boot_id": boot_id()})
        try:
            refusing(path, disk.truncate, lock_fd, 0)
            write_all(disk, path, lock_fd, message.encode() + b"\n")
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def held(self) -> bool:
        """False after `release`."""
        return bool(self._fds)

    def release(self) -> None:
        """Free the store; safe to call twice. LOCK stays."""
        while self._fds:
            self._disk.close(self._fds.pop())


@contextmanager
def folder_lock(disk: Disk, folder: Path) -> Iterator[None]:
    """Hold the flock of a folder of segments, waiting for it: while a segment gets its number and its name,
    while what never became one is tidied away, and while FORMAT is made.

    Raises `StoreBusy` when another process doesn't let go of it: it is stopped, or its disk is; `StoreGone`
    when the folder isn't there.
    """
    if not refusing(folder, disk.is_folder, folder):
        raise gone(folder, folder=True)
    fd = refusing(folder, disk.open, folder, os.O_RDONLY)
    try:
        until = time.monotonic() + _FOLDER_WAIT
        while not refusing(folder, disk.lock, fd, exclusive=True):
            if time.monotonic() > until:
                message = f"another process has held the folder for {_FOLDER_WAIT:.0f} seconds"
                cure = "look for a fafo that is stopped or whose disk hangs, and let it go on or end it"
                raise StoreBusy(Problem(message, file=str(folder), cure=cure))
            time.sleep(_FOLDER_POLL)
        yield
    finally:
        disk.close(fd)


def is_held(path: Path) -> bool:
    """Return whether some process holds the store whose LOCK file is `path`, also when LOCK was deleted.

    Asks the kernel's list of locks: to try the lock would, for that moment, keep a run from starting.
    """
    return _is_listed(_lock_names(path) | _lock_names(path.parent), frozenset({"WRITE"}))


def is_used(path: Path) -> bool:
    """Return whether some process writes or reads the segment of the queue at `path`, as its flock says.

    Takes none itself: that could keep the segment from being mended, or collected, for that moment.
    """
    return _is_listed(_lock_names(path), frozenset({"WRITE", "READ"}))


def _is_listed(names: set[str], modes: frozenset[str]) -> bool:
    # 12: FLOCK  ADVISORY  WRITE 4711 fe:00:1835 0 EOF
    fields = [line.split() for line in _LOCKS.read_text(encoding="ascii").splitlines()]
    return any(len(of) > 5 and of[1] == "FLOCK" and of[3] in modes and of[5] in names for of in fields)


def _lock_names(path: Path) -> set[str]:
    """Return how the kernel's list of locks may name what is at `path`; empty when nothing is there."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise refused(path, error) from error
    devices = {(os.major(status.st_dev), os.minor(status.st_dev))}
    # A btrfs subvolume or an overlay shows its files a device of their own; the list has the mount's.
    mount = _mount(path, _mounts() or "")
    if mount is not None:
        major, _, minor = mount.device.partition(":")
        devices.add((int(major), int(minor)))
    return {f"{major:02x}:{minor:02x}:{status.st_ino}" for major, minor in devices}


def _lock_file(disk: Disk, path: Path) -> int:
    for _ in range(_TRIES):
        fd = refusing(path, disk.open, path, os.O_RDWR | os.O_CREAT)
        if not refusing(path, disk.lock, fd, exclusive=True):
            disk.close(fd)
            raise busy(path)
        if disk.inode(path) == disk.inode(fd):
            return fd
        # The name was deleted and made anew between open and flock: what is locked is not what others see.
        disk.close(fd)
    raise busy(path)


def busy(path: Path) -> StoreBusy:
    """Return the error for a store that is in use; `path` is its LOCK file."""
    try:
        pid = said(read_file(Disk(), path) or b"").get("pid")
    except StoreError:
        pid = None
    owner = f"process {pid}" if isinstance(pid, int) else "another process"
    cure = "wait until it has finished, or stop it (Ctrl-C is safe); LOCK itself need not be deleted"
    return StoreBusy(Problem(f"{owner} is using this store", file=str(path.parent), cure=cure))


def refuse_network(folder: Path) -> None:
    """Raise `StoreError` when the folder lies on a network file system."""
    kind = file_system(folder)
    if kind in _NETWORK:
        message = f"the store is on a network file system ({kind}), where locks and syncs can't be trusted"
        cure = "put the store on a local disk, or trust it: set run.network_file_system = true"
        raise StoreError(Problem(message, file=str(folder), cure=cure))


def file_system(folder: Path, mounts: str | None = None) -> str | None:
    """Return the type of the file system that holds `folder`, None where the system doesn't say.

    `mounts` is the text of /proc/self/mountinfo.
    """
    if mounts is None:
        mounts = _mounts()
    mount = _mount(folder, mounts or "")
    return mount.kind if mount is not None else None


class _Mount(NamedTuple):
    device: str
    """MAJOR:MINOR, decimal."""
    kind: str


def _mounts() -> str | None:
    try:
        return _MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _mount(path: Path, mounts: str) -> _Mount | None:
    best, found = "", None
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        mount = fields[4].replace("\\040", " ")
        inside = mount == "/" or (str(path.resolve()) + "/").startswith(mount + "/")
        # A later line of the same length is mounted over the earlier one.
        if inside and len(mount) >= len(best):
            best, found = mount, _Mount(fields[2], after.split()[0])
    return found


def boot_id() -> str:
    """Return what names this boot of the machine; empty where the system doesn't say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
