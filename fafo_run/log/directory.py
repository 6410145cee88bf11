"""The folder of a run: where each file is, FORMAT, RUNNING and progress.json.

Of a segment it knows no more than whether its header is of this version.

LOCK  FORMAT  RUNNING  queue/  results/  index/  quarantine/  progress.json
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fafo_build.errors import Problem, StoreError
from fafo_run.log.format import VERSION
from fafo_run.log.fs import Disk, make_dir, read_file, refusing, replace_file, said, sync_dir
from fafo_run.log.listing import open_segments, segments
from fafo_run.log.locking import StoreLock, boot_id, folder_lock, is_held, refuse_network
from fafo_run.log.reader import read_header

_BYTE_ORDER = "little"
_NUMBER = re.compile(r"[0-9]{8,10}")


class NoStore(StoreError):
    """Nothing is here yet."""


class FormatLost(StoreError):
    """FORMAT is gone and segments are here; whoever opens the store to write makes it anew."""


class FormatUnreadable(StoreError):
    """FORMAT doesn't say what it should: it has to be deleted by a person, and is then made anew."""


class RunDirectory:
    """`runs/NAME/`. One that is opened to be read takes no lock and writes nothing."""

    def __init__(self, path: Path, disk: Disk, store: str) -> None:
        self.path = path
        self.disk = disk
        self.store = store
        """The store's uuid, 32 hex digits."""
        self.lock: StoreLock | None = None
        self.remade = False
        """True when FORMAT was gone though segments are here, and was written anew with another uuid."""

    @classmethod
    def own(cls, path: Path, disk: Disk | None = None, *, force: bool = False) -> RunDirectory:
        """Open a run's folder to write, and make it when it isn't there; lock it until `close`.

        Its parents are made too. Raises `StoreBusy` when another run has it, `StoreError` when it can't be
        made or used; `force` lets it lie on a network file system.
        """
        disk = disk or Disk()
        make_dir(disk, path)
        lock = StoreLock.acquire(disk, path / "LOCK", force=force)
        try:
            directory = cls._agreed(path, disk, owns=True)
            for folder in (directory.queue, directory.results, directory.index, directory.quarantine):
                make_dir(disk, folder)
        except BaseException:
            lock.release()
            raise
        directory.lock = lock
        return directory

    @classmethod
    def join(cls, path: Path, disk: Disk | None = None, *, force: bool = False) -> RunDirectory:
        """Open a run's folder to append to its queue, beside whoever owns it; makes what is missing.

        Takes no lock that would keep a run from starting; `force` lets it lie on a network file system.
        Raises `StoreError` when it can't be made or used, as `look` does.
        """
        disk = disk or Disk()
        make_dir(disk, path)
        if not force:
            refuse_network(path)
        return cls._agreed(path, disk, owns=False)

    @classmethod
    def look(cls, path: Path, disk: Disk | None = None) -> RunDirectory:
        """Open a run's folder to read.

        Raises `NoStore` when there is none, `StoreError` when it is of another format, `FormatLost` and
        `FormatUnreadable`.
        """
        disk = disk or Disk()
        store = _read_format(disk, path / "FORMAT")
        if store is None and _has_segments(disk, path):
            raise _lost(path)
        if store is None:
            cure = "name a run that was started; `fafo run` makes it"
            raise NoStore(Problem("no store is here", file=str(path), cure=cure))
        return cls(path, disk, store)

    @classmethod
    def _agreed(cls, path: Path, disk: Disk, *, owns: bool) -> RunDirectory:
        """Return the folder with its store's uuid; make queue/ and FORMAT when they are missing.

        Under the lock of queue/, so that an owner and several who join at once agree on one. Where segments
        are without FORMAT only the owner makes it: the run says so, and has an index to build.
        """
        queue = path / "queue"
        make_dir(disk, queue)
        with folder_lock(disk, queue):
            store = _read_format(disk, path / "FORMAT")
            if store is not None:
                return cls(path, disk, store)
            # Asked before anything is written: a store of another version isn't to be called one of this.
            remade = _has_segments(disk, path)
            if remade and not owns:
                raise _lost(path)
            store = uuid.uuid4().hex
            content = {"format": VERSION, "store": store, "byte_order": _BYTE_ORDER}
            replace_file(disk, path / "FORMAT", _json(content))
        directory = cls(path, disk, store)
        directory.remade = remade
        return directory

    @property
    def queue(self) -> Path:
        """Segments of waiting work."""
        return self.path / "queue"

    @property
    def results(self) -> Path:
        """Segments of results."""
        return self.path / "results"

    @property
    def index(self) -> Path:
        """The LMDB index; may be deleted at any moment."""
        return self.path / "index"

    @property
    def quarantine(self) -> Path:
        """What recovery put aside."""
        return self.path / "quarantine"

    def next_sequence(self, folder: Path) -> int:
        """Return a number that no segment of a folder has, nor had before it was put aside.

        It is free only as long as the caller holds the `folder_lock`.
        """
        known = [segment.sequence for segment in segments(self.disk, folder)]
        prefix = folder.name + "-"
        aside = self.quarantine
        names = refusing(aside, self.disk.listdir, aside) if self.disk.is_folder(aside) else []
        for name in names:
            number = _NUMBER.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if number is not None:
                known.append(int(number[0]))
        return max(known, default=0) + 1

    def stopped_cleanly(self) -> bool:
        """False when the last owner left RUNNING behind: it was killed, or the machine went down."""
        path = self.path / "RUNNING"
        return refusing(path, self.disk.inode, path) is None

    def running_boot(self) -> str | None:
        """Return the boot id in RUNNING, empty when it can't be read; None when the last stop was clean."""
        return None if self.stopped_cleanly() else str(self._said("RUNNING").get("boot_id", ""))

    def is_worked_on(self) -> bool:
        """Return whether a run holds the store and has recovered it: RUNNING is its own, not a dead one's."""
        owner = self._said("LOCK").get("pid")
        return owner is not None and owner == self._said("RUNNING").get("pid") and is_held(self.path / "LOCK")

    def _said(self, name: str) -> dict[str, Any]:
        return said(read_file(self.disk, self.path / name) or b"")

    def mark_running(self) -> None:
        """Write RUNNING: from here on, an end without `mark_stopped` is an unclean one."""
        content = {"boot_id": boot_id(), "pid": os.getpid(), "started": int(time.time())}
        replace_file(self.disk, self.path / "RUNNING", _json(content))

    def mark_stopped(self) -> None:
        """Remove RUNNING, durably; harmless when it isn't there. Raises `StoreGone` without a folder."""
        path = self.path / "RUNNING"
        if not self.stopped_cleanly():
            refusing(path, self.disk.unlink, path)
        sync_dir(self.disk, self.path)

    def write_progress(self, progress: Mapping[str, Any]) -> None:
        """Replace progress.json; a reader sees the old one or the new one, whole."""
        replace_file(self.disk, self.path / "progress.json", _json(progress))

    def read_progress(self) -> dict[str, Any] | None:
        """Return what progress.json says, None when it isn't there or isn't JSON: it is only a hint."""
        return self._said("progress.json") or None

    def close(self) -> None:
        """Free the lock; safe to call twice."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _read_format(disk: Disk, path: Path) -> str | None:
    """Return the store's uuid, None when there is no FORMAT. Raises `StoreError`."""
    data = read_file(disk, path)
    if data is None:
        return None
    found = said(data)
    try:
        version, store, order = found["format"], found["store"], found["byte_order"]
    except KeyError as error:
        cure = "delete FORMAT: it is written anew, and the segments say what they are"
        raise FormatUnreadable(Problem("FORMAT can't be read", file=str(path), cure=cure)) from error
    if version != VERSION or order != _BYTE_ORDER or not isinstance(store, str):
        message = f"the store has format {version!r} ({order!r}), this fafo reads {VERSION} ({_BYTE_ORDER})"
        cure = "use the version of fafo that wrote it"
        raise StoreError(Problem(message, file=str(path), cure=cure))
    return store


def _lost(path: Path) -> FormatLost:
    cure = "start `fafo run`, or `fafo store repair`: FORMAT is written anew, nothing else is touched"
    return FormatLost(Problem("FORMAT is gone, and segments are here", file=str(path), cure=cure))


def _has_segments(disk: Disk, path: Path) -> bool:
    """Return whether a folder without FORMAT holds segments. Raises `OtherVersion` for those of another."""
    # All are looked at, also when one is found: a later one may be of another version.
    headers = [
        read_header(file)[0] for part in ("queue", "results") for file in open_segments(disk, path / part)
    ]
    return any(header is not None for header in headers)
