"""The segments of a folder: their names, their order, and how one is removed."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from fafo_run.log.fs import Disk, File, refusing, sync_dir


@frozen
class SegmentFile:
    """A segment of a folder, by its name."""

    path: Path
    sequence: int
    """The number in the name. It, not the header, is what the index refers to."""


def segments(disk: Disk, folder: Path) -> list[SegmentFile]:
    """Return a folder's segments in order of their sequence; none when the folder isn't there."""
    if disk.inode(folder) is None:
        return []
    names = [name for name in disk.listdir(folder) if name.endswith(".seg") and name[:-4].isdigit()]
    return sorted((SegmentFile(folder / name, int(name[:-4])) for name in names), key=lambda s: s.sequence)


def segment_name(sequence: int) -> str:
    """Return the file name of a segment."""
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
