"""The folder of a run: where each file is, FORMAT, RUNNING and progress.json. It knows no segment's content.

LOCK  FORMAT  RUNNING  queue/  results/  index/  quarantine/  progress.json
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fafo_build.errors import Problem, StoreError
from fafo_run.log.format import VERSION
from fafo_run.log.fs import Disk, make_dir, read_file, refusing, replace_file, sync_dir
from fafo_run.log.locking import StoreLock, boot_id

_BYTE_ORDER = "little"


class RunDirectory:
    """`runs/NAME/`. One that is opened to be read takes no lock and writes nothing."""

    def __init__(self, path: Path, disk: Disk, store: str) -> None:
        self.path = path
        self.disk = disk
        self.store = store
        """The store's uuid, 32 hex digits."""
        self.lock: StoreLock | None = None

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
            store = _read_format(disk, path / "FORMAT")
            if store is None:
                store = uuid.uuid4().hex
                said = {"format": VERSION, "store": store, "byte_order": _BYTE_ORDER}
                replace_file(disk, path / "FORMAT", _json(said))
            directory = cls(path, disk, store)
            for folder in (directory.queue, directory.results, directory.index, directory.quarantine):
                make_dir(disk, folder)
        except BaseException:
            lock.release()
            raise
        directory.lock = lock
        return directory

    @classmethod
    def look(cls, path: Path, disk: Disk | None = None) -> RunDirectory:
        """Open a run's folder to read. Raises `StoreError` when there is none, or of another format."""
        disk = disk or Disk()
        store = _read_format(disk, path / "FORMAT")
        if store is None:
            cure = "name a run that was started; `fafo run` makes it"
            raise StoreError(Problem("no store is here", file=str(path), cure=cure))
        return cls(path, disk, store)

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

    def stopped_cleanly(self) -> bool:
        """False when the last owner left RUNNING behind: it was killed, or the machine went down."""
        path = self.path / "RUNNING"
        return refusing(path, self.disk.inode, path) is None

    def mark_running(self) -> None:
        """Write RUNNING: from here on, an end without `mark_stopped` is an unclean one."""
        said = {"boot_id": boot_id(), "pid": os.getpid(), "started": int(time.time())}
        replace_file(self.disk, self.path / "RUNNING", _json(said))

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
        data = read_file(self.disk, self.path / "progress.json")
        try:
            said = json.loads(data) if data else None
        except ValueError:
            return None
        return said if isinstance(said, dict) else None

    def close(self) -> None:
        """Free the lock; safe to call twice."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, indent=2).encode() + b"\n"


def _read_format(disk: Disk, path: Path) -> str | None:
    """Return the store's uuid, None when there is no FORMAT. Raises `StoreError`."""
    data = read_file(disk, path)
    if data is None:
        return None
    try:
        said = json.loads(data)
        version, store, order = said["format"], said["store"], said["byte_order"]
    except (ValueError, KeyError, TypeError) as error:
        cure = "delete FORMAT: it is written anew, and the segments say what they are"
        raise StoreError(Problem("FORMAT can't be read", file=str(path), cure=cure)) from error
    if version != VERSION or order != _BYTE_ORDER or not isinstance(store, str):
        message = f"the store has format {version!r} ({order!r}), this fafo reads {VERSION} ({_BYTE_ORDER})"
        cure = "use the version of fafo that wrote it"
        raise StoreError(Problem(message, file=str(path), cure=cure))
    return store
