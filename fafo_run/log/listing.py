"""The segments of a folder: their names, their order, and how one is removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from fafo_build.errors import Problem, StoreError
from fafo_run.log.fs import Disk, File, refusing, sync_dir

_NAME = re.compile(r"[0-9]{8,10}\.seg")
_MOST = 9_999_999_999


@frozen
class SegmentFile:
    """A segment of a folder, by its name."""

    path: Path
    sequence: int
    """The number in the name. It, not the header, is what the index refers to."""


def segments(disk: Disk, folder: Path) -> list[SegmentFile]:
    """Return a folder's segments in order of their sequence; none when the folder isn't there.

    Raises `StoreError` when the folder can't be read.
    """
    names = [name for name in _listed(disk, folder) if _is_segment(disk, folder, name)]
    return sorted((SegmentFile(folder / name, int(name[:-4])) for name in names), key=lambda s: s.sequence)


def open_segments(disk: Disk, folder: Path) -> Iterator[File]:
    """Yield a folder's segments, each open to be read until the next is asked for, in order.

    One that was collected since the folder was listed is passed over: everything in it was done. Raises
    `StoreError` when the folder or a segment can't be read.
    """
    for segment in segments(disk, folder):
        try:
            file = File(disk, segment.path)
        except FileNotFoundError:
            continue
        try:
            yield file
        finally:
            file.close()


def strays(disk: Disk, folder: Path) -> list[str]:
    """Return the names that end like a segment's, and are no segment: nothing reads them."""
    names = _listed(disk, folder)
    return [name for name in names if name.endswith(".seg") and not _is_segment(disk, folder, name)]


def segment_name(sequence: int) -> str:
    """Return the file name of a segment. Raises `StoreError` for a number that no name may have."""
    if sequence > _MOST:
        message = f"there is no number after {_MOST} for a segment"
        cure = "look for a file of that number in the run's folder, and move it out"
        raise StoreError(Problem(message, cure=cure))
    return f"{sequence:08d}.seg"


def remove_segment(disk: Disk, file: File) -> None:
    """Remove an open segment in which everything is done, so that a crash leaves it whole or gone.

    A `.dead` file that a crash leaves behind is removed by recovery. Raises `StoreError`.
    """
    file.sync()
    dead = file.path.with_suffix(".dead")
    refusing(dead, disk.rename, file.path, dead)
    sync_dir(disk, dead.parent)
    refusing(dead, disk.unlink, dead)
    sync_dir(disk, dead.parent)


def _listed(disk: Disk, folder: Path) -> list[str]:
    if refusing(folder, disk.inode, folder) is None:
        return []
    return refusing(folder, disk.listdir, folder)


def _is_segment(disk: Disk, folder: Path, name: str) -> bool:
    # Another spelling of a number would be a second name for the same segment.
    return (
        _NAME.fullmatch(name) is not None
        and name == segment_name(int(name[:-4]))
        and refusing(folder / name, disk.is_file, folder / name)
    )
