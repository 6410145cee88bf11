"""What recovery takes out of the way: bytes and whole files, each with the reason beside it.

Nothing that lies there is ever replaced or removed. It knows no segment's content.
"""

from __future__ import annotations

from pathlib import Path

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import File, read_file, refusing, replace_file, sync_dir


def keep_bytes(directory: RunDirectory, path: Path, offset: int, data: bytes, reason: str) -> None:
    """Copy bytes of the segment at `path`; harmless when they lie there already. Raises `StoreError`."""
    disk = directory.disk
    stem = f"{path.parent.name}-{path.stem}-{offset}-{len(data)}"
    name, number = f"{stem}.bin", 1
    while (kept := read_file(disk, directory.quarantine / name)) is not None:
        if kept == data:
            return
        number += 1
        name = f"{stem}-{number}.bin"
    aside = directory.quarantine / name
    replace_file(disk, aside.with_suffix(".reason"), reason.encode() + b"\n")
    replace_file(disk, aside, data)


def put_aside(directory: RunDirectory, path: Path, reason: str) -> None:
    """Move a whole file there. Raises `StoreError`."""
    disk = directory.disk
    stem = f"{path.parent.name}-{path.name}"
    aside, number = directory.quarantine / stem, 1
    while disk.inode(aside) is not None:
        number += 1
        aside = directory.quarantine / f"{stem}-{number}"
    file = File(disk, path)
    try:
        file.sync()
    finally:
        file.close()
    replace_file(disk, aside.with_name(aside.name + ".reason"), reason.encode() + b"\n")
    refusing(aside, disk.rename, path, aside)
    sync_dir(disk, directory.quarantine)
    sync_dir(disk, path.parent)
