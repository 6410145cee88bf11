"""A file of a source, and how people know it."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from fafo_build.errors import Problem, SourceError


@frozen
class DataFile:
    """One file of a source."""

    path: Path
    shown: str
    """As people know it: relative to the project where it lies inside."""


def shown_path(path: Path, root: Path) -> str:
    """Return a path as people know it: relative to the project where it lies inside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def no_rows(what: str, shown: str, source: str, *, alone: bool = True) -> SourceError:
    """Return the error of a file that has no row for its source; `alone` when it has no other file."""
    cure = "put rows into it, or " + ("name another file" if alone else "leave it out of the source")
    return SourceError(Problem(what, file=shown, field=f"source.{source}.path", cure=cure))


def cant_read(shown: str, error: OSError) -> SourceError:
    """Return the error of a file that the system doesn't let us read."""
    return SourceError(Problem(f"can't be read: {error.strerror or error}", file=shown))
