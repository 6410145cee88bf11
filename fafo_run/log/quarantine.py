"""What recovery takes out of the way: bytes and whole files, each with the reason beside it.

Nothing that lies there is ever replaced or removed. It knows no segment's content.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from fafo_run.log.directory import RunDirectory
from fafo_run.log.fs import Disk, File, read_file, refusing, replace_file, sync_dir

_PIECE = 1 << 20
"""Bytes copied at once: what is damaged may be as large as a segment."""
_REASON = ".reason"


@frozen
class Kept:
    """What lies in quarantine/."""

    name: str
    size: int
    """In bytes."""
    reason: str
    """Why, a line for people; empty when its reason file is gone."""


def keep_bytes(directory: RunDirectory, path: Path, offset: int, length: int, reason: str) -> None:
    """Copy bytes of the segment at `path`; harmless when they lie there already. Raises `StoreError`."""
    source = File(directory.disk, path)
    try:
        aside, there = _place(directory, path, source, offset, length)
        if not there:
            replace_file(directory.disk, aside.with_suffix(_REASON), reason.encode() + b"\n")
            _copy(directory.disk, source, offset, length, aside)
    finally:
        source.close()


def has_bytes(directory: RunDirectory, path: Path, offset: int, length: int) -> bool:
    """Return whether these very bytes of the segment at `path` lie there already. Raises `StoreError`."""
    source = File(directory.disk, path)
    try:
        return _place(directory, path, source, offset, length)[1]
    finally:
        source.close()


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
    replace_file(disk, aside.with_name(aside.name + _REASON), reason.encode() + b"\n")
    refusing(aside, disk.rename, path, aside)
    sync_dir(disk, directory.quarantine)
    sync_dir(disk, path.parent)


def kept(directory: RunDirectory) -> Iterator[Kept]:
    """Yield what lies there, sorted by name, without the reason files. Raises `StoreError`."""
    disk, folder = directory.disk, directory.quarantine
    if not refusing(folder, disk.is_folder, folder):
        return
    for name in refusing(folder, disk.listdir, folder):
        path = folder / name
        if name.endswith((_REASON, ".tmp")) or not refusing(path, disk.is_file, path):
            continue
        beside = path.with_suffix(_REASON) if name.endswith(".bin") else path.with_name(name + _REASON)
        said = read_file(disk, beside) or b""
        file = File(disk, path)
        try:
            yield Kept(name, file.size(), said.decode("utf-8", "replace").strip())
        finally:
            file.close()


def _place(directory: RunDirectory, path: Path, source: File, offset: int, length: int) -> tuple[Path, bool]:
    """Return where a copy of the bytes lies or has to go, and whether it lies there."""
    disk, number = directory.disk, 1
    stem = f"{path.parent.name}-{path.stem}-{offset}-{length}"
    aside = directory.quarantine / f"{stem}.bin"
    while disk.inode(aside) is not None:
        if disk.is_file(aside) and _is_copy(disk, aside, source, offset, length):
            return aside, True
        number += 1
        aside = directory.quarantine / f"{stem}-{number}.bin"
    return aside, False


def _copy(disk: Disk, source: File, offset: int, length: int, aside: Path) -> None:
    temporary = aside.with_name(aside.name + ".tmp")
    file = File(disk, temporary, write=True, create=True)
    try:
        for at, piece in _pieces(source, offset, length):
            file.write_at(at - offset, piece)
        file.sync()
    finally:
        file.close()
    refusing(aside, disk.rename, temporary, aside)
    sync_dir(disk, aside.parent)


def _is_copy(disk: Disk, aside: Path, source: File, offset: int, length: int) -> bool:
    file = File(disk, aside)
    try:
        return file.size() == length and all(
            file.read_at(at - offset, len(piece)) == piece for at, piece in _pieces(source, offset, length)
        )
    finally:
        file.close()


def _pieces(source: File, offset: int, length: int) -> Iterator[tuple[int, bytes]]:
    for at in range(offset, offset + length, _PIECE):
        yield at, source.read_at(at, min(_PIECE, offset + length - at))
