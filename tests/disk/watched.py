"""Disks that a test stands beside: at each call that changes something, it may look, refuse or end it all.

`Watched` goes over any `Disk`, the real one or the simulated one.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

from fafo_run.log.fs import Disk
from tests.disk.simulated import SimulatedDisk

CHANGES = ("open", "pwrite", "fdatasync", "truncate", "mkdir", "rename", "unlink", "sync_dir")
"""The calls that change something; an `open` counts when it may make or empty a file."""


class Killed(BaseException):
    """The process ends here."""


class Watched(Disk):
    """Calls `before` and `after` with the call's name and the path at each change."""

    def before(self, call: str, path: Path) -> None:
        """May raise, and then the call isn't made."""

    def after(self, call: str, path: Path) -> None:
        """The call was made."""

    def shortened(self, data: memoryview) -> memoryview:
        """Return what of a write is written."""
        return data

    def path_of(self, fd: int) -> Path:
        return Path(f"/proc/self/fd/{fd}").readlink()

    def open(self, path, flags):
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return super().open(path, flags)
        self.before("open", path)
        fd = super().open(path, flags)
        self.after("open", path)
        return fd

    def pwrite(self, fd, data, offset):
        path = self.path_of(fd)
        self.before("pwrite", path)
        written = super().pwrite(fd, self.shortened(data), offset)
        self.after("pwrite", path)
        return written

    def fdatasync(self, fd):
        path = self.path_of(fd)
        self.before("fdatasync", path)
        super().fdatasync(fd)
        self.after("fdatasync", path)

    def truncate(self, fd, size):
        path = self.path_of(fd)
        self.before("truncate", path)
        super().truncate(fd, size)
        self.after("truncate", path)

    def mkdir(self, path):
        self.before("mkdir", path)
        super().mkdir(path)
        self.after("mkdir", path)

    def rename(self, old, new):
        self.before("rename", new)
        super().rename(old, new)
        self.after("rename", new)

    def unlink(self, path):
        self.before("unlink", path)
        super().unlink(path)
        self.after("unlink", path)

    def sync_dir(self, path):
        self.before("sync_dir", path)
        super().sync_dir(path)
        self.after("sync_dir", path)


class WatchedSimulation(Watched, SimulatedDisk):
    """A simulated disk that is watched, going on from another one, which nothing uses any more."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__()
        self.root = disk.root
        self._numbers = disk._numbers

    def path_of(self, fd):
        return SimulatedDisk.path_of(self, fd)


class Counting(Watched):
    """Does something at one call: the `at`th of those that `matches`, counted from 0."""

    at = -1
    seen = 0

    def matches(self, call: str, path: Path) -> bool:
        return True

    def strike(self, call: str, path: Path) -> None:
        raise NotImplementedError

    def before(self, call, path):
        if self.matches(call, path):
            self.seen += 1
            if self.seen - 1 == self.at:
                self.strike(call, path)


class SelfKilling(Counting):
    """Kills this process, as kill -9 does, right before one change; a write is done half before."""

    def strike(self, call, path):
        os.kill(os.getpid(), signal.SIGKILL)

    def pwrite(self, fd, data, offset):
        if self.seen == self.at:
            Disk.pwrite(self, fd, data[: len(data) // 2], offset)
        return super().pwrite(fd, data, offset)


class Refusing(WatchedSimulation):
    """A simulated disk that refuses one change, and does what a kernel then does.

    `error` is an errno. A refused write has been done half; after a refused sync the pages count as clean.
    """

    def __init__(
        self, disk: SimulatedDisk, at: int, error: int = errno.EIO, calls: tuple[str, ...] = CHANGES
    ):
        super().__init__(disk)
        self.at = at
        self.error = error
        self.calls = calls
        self.seen = 0
        self.refused: str | None = None
        """The call that was refused, once it was."""

    def before(self, call, path):
        if call not in self.calls:
            return
        self.seen += 1
        if self.seen - 1 == self.at:
            self.refused = f"{call} {path}"
            raise OSError(self.error, os.strerror(self.error), str(path))

    def pwrite(self, fd, data, offset):
        if "pwrite" in self.calls and self.seen == self.at and len(data) > 1:
            SimulatedDisk.pwrite(self, fd, data[: len(data) // 2], offset)
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd):
        try:
            super().fdatasync(fd)
        except OSError:
            self.refuse_sync(fd)
            raise


class Stuttering(WatchedSimulation):
    """Writes at most `most` bytes at once."""

    most = 100

    def shortened(self, data):
        return data[: self.most]


def watching(kind: type[Watched], see: Callable[[str, Path], None]) -> Watched:
    """Return a watched disk of this kind whose `after` is `see`."""
    disk = kind()
    disk.after = see
    return disk
