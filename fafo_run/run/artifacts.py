"""Which artifacts the stores of a project refer to: so that `fafo build --gc` drops none of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from fafo_build.errors import Problem, StoreError
from fafo_build.project.declaration import Project
from fafo_run.log.fs import Disk, File
from fafo_run.log.locking import is_held
from fafo_run.log.reader import read_header

_SEGMENT = re.compile(r".*\.seg(-[0-9]+)?")
"""Segments, those put aside in quarantine/ included."""
_NOTHING = "; nothing was dropped"


def used_artifacts(project: Project) -> frozenset[str]:
    """Return the hash of the artifact of every segment below the project's runs folder.

    A segment names its artifact in its header, and holds entries of no other. Raises `StoreError` on any
    doubt: a run in progress, whose next segments aren't there yet, or something that can't be read.
    """
    if not os.path.lexists(project.runs_dir):
        return frozenset()
    disk = Disk()
    return frozenset(_artifact(disk, path) for path in _segments(project.runs_dir))


def _segments(runs: Path) -> Iterator[Path]:
    """Yield every segment, also in folders that are links, wherever somebody has put it below `runs`."""
    seen: set[tuple[int, int]] = set()
    for name, folders, files in os.walk(runs, onerror=_unreadable, followlinks=True):
        folder = Path(name)
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if is_held(folder / "LOCK"):
            cure = "wait until it has finished, or stop it (Ctrl-C is safe)"
            raise StoreError(Problem("a run is in progress here" + _NOTHING, file=name, cure=cure))
        for path in (folder / file for file in sorted(files)):
            if path.is_symlink() and not path.exists():
                _unreadable(FileNotFoundError(2, os.strerror(2), str(path)))
            if _SEGMENT.fullmatch(path.name):
                yield path


def _artifact(disk: Disk, path: Path) -> str:
    try:
        file = File(disk, path)
    except FileNotFoundError as error:
        _unreadable(error)
    try:
        header, _ = read_header(file)
    finally:
        file.close()
    if header is None:
        message = "this segment doesn't say whose it is: its header is damaged" + _NOTHING
        cure = "look whether you can do without it, then delete it, or move it out of the runs folder"
        raise StoreError(Problem(message, file=str(path), cure=cure))
    return header.artifact.hex()


def _unreadable(error: OSError) -> NoReturn:
    cure = "mend it, or move it out of the runs folder"
    message = f"can't be read: {os.strerror(error.errno or 0)}" + _NOTHING
    raise StoreError(Problem(message, file=error.filename, cure=cure)) from error
