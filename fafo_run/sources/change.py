"""Whether a source may have other rows than when it was last read, without reading it."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from fafo_build.project.declaration import Source as Declared

Signature = frozenset[tuple[str, int, int, int]]
"""Of each file its path, inode, size in bytes, and time of change in nanoseconds."""


def signature(declared: Declared, root: Path) -> Signature | None:
    """Return what a source's files look like now; another one when rows may have come, changed or gone.

    None for a query: only asking it again tells; and for what can't be looked for: reading it says why. Files
    that can't be looked at are left out.
    """
    if declared.type == "sql":
        return None
    try:
        return frozenset(
            seen for pattern in declared.path for path in _files(root / pattern) for seen in _look(path)
        )
    except OSError:
        return None


def _files(pattern: Path) -> Iterator[Path]:
    """Yield the files that a path or glob stands for, of a folder all that are inside."""
    found = [str(pattern)] if pattern.exists() else glob.glob(str(pattern), recursive=True)  # noqa: PTH207
    for path in map(Path, found):
        yield path
        if path.is_dir():
            yield from path.rglob("*")


def _look(path: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        status = path.stat()
    except OSError:
        return
    yield str(path), status.st_ino, status.st_size, status.st_mtime_ns
