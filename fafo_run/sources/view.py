"""A view makes all sources look alike: opens them, and looks over a whole source for rows that contradict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from fafo_build.errors import Problem, SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.base import Source
from fafo_run.sources.keys import IN_MEMORY, Keys, Twice

_BROKEN = "!"
"""Before the keys of broken rows; `=` stands before the others."""

See = Callable[[Row | BrokenRow], None]
"""Is shown rows that somebody reads."""


@frozen
class Survey:
    """What a whole source holds. Rows that are equal in key and content count once."""

    source: str
    rows: int
    """Different good rows."""
    broken: int
    """Different rows that can't be used."""
    repeated: int
    """Rows that stand there once more, same key and same content."""
    unmatched: tuple[str, ...] = ()
    """Globs that no file matched, beside others."""


def open_source(declared: Declared, root: Path) -> Source:
    """Return the source that is declared, in the project at `root`. Nothing is read yet."""
    if declared.type == "sql":
        from fafo_run.sources.sql import SqlSource

        return SqlSource(declared, root)
    if declared.type == "dataset":
        from fafo_run.sources.dataset import DatasetSource

        return DatasetSource(declared, root)
    from fafo_run.sources.files import FilesSource

    return FilesSource(declared, root)


def survey(source: Source, workdir: Path, *, in_memory: int = IN_MEMORY, see: See | None = None) -> Survey:
    """Read a source once, and count. Holds `in_memory` keys in memory, puts more into a file in `workdir`.
    `see` is shown every row on the way.

    Raises `SourceError` as the source does, and when two good rows have one key and different contents: the
    error names both. Raises `StoreError` when `workdir` can't take the file.
    """
    rows = broken = repeated = 0
    with Keys(workdir, in_memory) as keys:
        for row in source.rows():
            if see is not None:
                see(row)
            is_broken = isinstance(row, BrokenRow)
            # Broken rows contradict nobody: two of them under one key are two failures.
            name = f"{_BROKEN}{row.content_hash.hex()}:{row.key}" if is_broken else f"={row.key}"
            found = keys.put(name, row.content_hash, row.where)
            if found is None:
                rows, broken = rows + (not is_broken), broken + is_broken
            else:
                repeated += _equal(source, found)
        for found in keys.later():
            # It was taken for another one.
            repeated += _equal(source, found)
            if found.name.startswith(_BROKEN):
                broken -= 1
            else:
                rows -= 1
    return Survey(source.name, rows, broken, repeated, source.unmatched)


def _equal(source: Source, found: Twice) -> bool:
    """Return True for a row that stands there once more as it is; raise `SourceError` for another content."""
    if not found.is_equal:
        raise SourceError(
            Problem(
                f'two rows have the key "{found.name[1:]}" and different contents: '
                f"{found.first} and {found.second}",
                field=f"source.{source.name}.key",
                cure="take a key that names each row, or several columns, or remove one of the rows",
            )
        )
    return True
