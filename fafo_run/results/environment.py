"""LMDB environments: opened once per process, grown when they are full, tried by a child after a crash.

It knows no table's content.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeVar
from weakref import WeakValueDictionary

import lmdb

from fafo_build.errors import Problem, StoreError
from fafo_run.log import fs

TABLES = (b"entries", b"superseded", b"segments", b"lost", b"meta")
MAP_SIZE = 16 << 30
"""Bytes of address space, not of disk; doubled when it is full."""
MAX_READERS = 512
LOCK_SIZE = 192 + (MAX_READERS - 1) * 64
"""Bytes of lock.mdb, as LMDB lays it out: its own, and one place per reader."""
DATA = "data.mdb"
_LOCK = "lock.mdb"
_SIZE = "SIZE"
_PROBE = """
import sys, lmdb
with lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=8) as env, env.begin() as txn:
    for name in sys.argv[2:]:
        for _ in txn.cursor(env.open_db(name.encode(), txn=txn, create=False)):
            pass
"""
_DAMAGED = (
    lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError, lmdb.ProblemError,
    lmdb.PageFullError, lmdb.CursorFullError, lmdb.BadTxnError,
)  # fmt: skip
"""What LMDB says of its own pages, not of the disk. A write may be the first to meet a damaged one."""
T = TypeVar("T")


class UnusableIndexError(Exception):
    """The index is absent, of another store or format, or not what LMDB can read. It can be rebuilt."""


class Environment:
    """An open environment. LMDB takes each only once per process, so those who ask again share it.

    Its reads may come from any thread; one thread writes. A child of the process can't use it: LMDB's locks
    don't pass through a fork.
    """

    # Of the process, as LMDB's own limit is. What nobody holds any more, closed or not, isn't kept here.
    _open: ClassVar[WeakValueDictionary[tuple[int, int], Environment]] = WeakValueDictionary()
    _opening: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        path: Path,
        *,
        write: bool,
        create: bool = False,
        durable: bool = True,
        map_size: int = MAP_SIZE,
    ) -> None:
        """Open `path` for nobody but the caller; `shared` is the way to an index that others may read.

        Raises `OSError` and `lmdb.Error`.
        """
        self.path = path
        self.write = write
        self._pid = os.getpid()
        self._users = 1
        # Held for each read, so that no transaction is open while the map changes its size.
        self._gate = threading.Lock()
        _reserve(path / _LOCK, write=write)
        # Every commit is synced: the merges are so large that it costs nothing that can be measured, and a
        # power cut then leaves the index as it was after one of them.
        self._lmdb = lmdb.open(
            str(path), map_size=map_size, readonly=not write, create=create, max_dbs=8, sync=durable,
            metasync=durable, writemap=False, map_async=False, lock=True, readahead=False,
            max_readers=MAX_READERS,
        )  # fmt: skip
        try:
            self.reap()
            self.tables = {name: self._lmdb.open_db(name, create=create) for name in TABLES}
        except BaseException:
            self._lmdb.close()
            raise

    @classmethod
    def shared(cls, path: Path, *, write: bool, map_size: int = MAP_SIZE) -> Environment:
        """Open the environment in `path`, or join those in this process who have it open.

        Raises `UnusableIndexError`; nothing is created.
        """
        with cls._opening:
            while True:
                key = _inode(path)
                known = cls._open.get(key)
                if known is not None and known._pid == os.getpid():
                    if write and not known.write:
                        raise UnusableIndexError("this process has the index open to read it")
                    known._users += 1
                    return known
                try:
                    found = cls(path, write=write, map_size=map_size)
                except (lmdb.Error, OSError) as error:
                    raise UnusableIndexError(str(error)) from error
                if _inode(path) == key:
                    cls._open[key] = found
                    return found
                # Another process put a new index there meanwhile: the files may be of two of them.
                found._lmdb.close()

    def reap(self) -> None:
        """Free the places of readers that died."""
        self._lmdb.reader_check()

    def read(self, use: Callable[[lmdb.Transaction], T]) -> T:
        """Return what `use` returns of a short read transaction. Raises `UnusableIndexError`."""
        self._check_process()
        with self._gate:
            while True:
                try:
                    with self._lmdb.begin() as transaction:
                        return use(transaction)
                except lmdb.MapResizedError:
                    # Another process grew it: 0 takes the size that it has now.
                    self._lmdb.set_mapsize(0)
                except (lmdb.Error, struct.error) as error:
                    raise UnusableIndexError(str(error)) from error

    def change(self, use: Callable[[lmdb.Transaction], T]) -> T:
        """Return what `use` returns of a write transaction, which is then durable.

        When the map is full it grows, and `use` is called again, from the start. Raises `StoreError` when the
        disk refuses, and `UnusableIndexError` for damaged pages; then nothing was changed.
        """
        self._check_process()
        while True:
            try:
                with self._lmdb.begin(write=True) as transaction:
                    return use(transaction)
            except lmdb.MapFullError:
                with self._gate:
                    self._lmdb.set_mapsize(self._lmdb.info()["map_size"] * 2)
            except _DAMAGED as error:
                raise UnusableIndexError(str(error)) from error
            except lmdb.Error as error:
                raise refused(self.path, error) from error

    @property
    def version(self) -> int:
        """The number of the last change; changes by other processes count too."""
        return int(self._lmdb.info()["last_txnid"])

    def sync(self) -> None:
        """Make all changes durable, where that isn't done with each. Raises `StoreError`."""
        try:
            self._lmdb.sync(True)
        except lmdb.Error as error:
            raise refused(self.path, error) from error

    def close(self) -> None:
        """Close when nobody else in the process has it open. A writer notes its size, for `is_whole`."""
        with self._opening:
            self._users -= 1
            if self._users or self._pid != os.getpid():
                return
            for key in [key for key, known in self._open.items() if known is self]:
                del self._open[key]
        with self._gate:
            self._lmdb.close()
            if self.write:
                # Without the note the next start looks closer; that is all it costs.
                with suppress(OSError):
                    (self.path / _SIZE).write_text(str((self.path / DATA).stat().st_size), "ascii")

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise UnusableIndexError("the index was opened before a fork")


def is_whole(path: Path) -> bool:
    """Return whether an index is no shorter than its writer left it: a shorter one kills its reader."""
    try:
        return (path / DATA).stat().st_size >= int((path / _SIZE).read_text("ascii"))
    except (OSError, ValueError):
        return False


def probe(path: Path) -> bool:
    """Return whether a child process can read the whole index and live: damage can kill its reader."""
    if not (path / DATA).is_file():
        return False
    tables = [name.decode() for name in TABLES]
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(path), *tables],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def refused(path: Path, error: Exception) -> StoreError:
    """Return what LMDB, or the system under it, refused."""
    if isinstance(error, OSError):
        return fs.refused(path, error)
    cure = "free some space and start the run again; results are safe, the index is rebuilt from them"
    return StoreError(Problem(f"the index can't be written: {error}", file=str(path), cure=cure))


def _reserve(lock: Path, *, write: bool) -> None:
    """Give lock.mdb all its blocks. Raises `OSError`.

    LMDB makes it sparse and writes to it through a map: where the disk is full that kills the process. Only
    for who hasn't it open: to close any descriptor of a file ends the locks that the process has on it.
    """
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.EROFS and not write:
            return  # There LMDB reads without it.
        raise
    try:
        status = os.fstat(fd)
        if status.st_size < LOCK_SIZE or status.st_blocks * 512 < status.st_size:
            os.posix_fallocate(fd, 0, max(status.st_size, LOCK_SIZE))
    except OSError as error:
        # A file system that can't reserve anything keeps what LMDB does.
        if error.errno != errno.EOPNOTSUPP:
            raise
    finally:
        os.close(fd)


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = (path / DATA).stat()
    except OSError as error:
        raise UnusableIndexError("there is no index") from error
    return status.st_dev, status.st_ino
