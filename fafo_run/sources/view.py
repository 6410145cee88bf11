"""A view makes all sources look alike: opens them, and looks over a whole source for rows that contradict."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import lmdb
import msgspec
from attrs import frozen

from fafo_build.errors import Problem, SourceError, StoreError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow
from fafo_run.sources.base import Source

IN_MEMORY = 200_000
"""Keys that a survey holds in memory; about 60 MB. More go into a file."""

_FILE_SIZE = 1 << 40
"""Bytes of address space for that file, which grows as it is filled."""


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


def survey(source: Source, workdir: Path, *, in_memory: int = IN_MEMORY) -> Survey:
    """Read a source once, and count. Needs memory for `in_memory` keys, and a file in `workdir` for more.

    Raises `SourceError` as the source does, and when two good rows have one key and different contents: the
    error names both. Raises `StoreError` when `workdir` can't take the file.
    """
    rows = broken = repeated = 0
    with _Seen(workdir, in_memory) as seen:
        for row in source.rows():
            is_broken = isinstance(row, BrokenRow)
            # Broken rows contradict nobody: two of them under one key are two failures.
            name = f"!{row.content_hash.hex()}:{row.key}" if is_broken else f"={row.key}"
            before = seen.put(name, row.content_hash, row.where)
            if before is None:
                rows, broken = rows + (not is_broken), broken + is_broken
            elif before[0] == row.content_hash:
                repeated += 1
            else:
                raise SourceError(
                    Problem(
                        f'two rows have the key "{row.key}" and different contents: '
                        f"{before[1]} and {row.where}",
                        field=f"source.{source.name}.key",
                        cure="take a key that names each row, or several columns, or remove one of the rows",
                    )
                )
    return Survey(source.name, rows, broken, repeated)


T = TypeVar("T")

_Entry = tuple[bytes, str]
"""Content hash and where."""


class _Seen:
    """A map from names to entries, in memory while it is small, else in a file that is deleted at the end."""

    def __init__(self, workdir: Path, in_memory: int) -> None:
        self._workdir = workdir
        self._in_memory = in_memory
        self._recent: dict[str, _Entry] = {}
        self._file: _File | None = None

    def __enter__(self) -> _Seen:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def put(self, name: str, content: bytes, where: str) -> _Entry | None:
        """Return what stands under a name, or put this there."""
        before = self._recent.get(name) or (self._file.get(name) if self._file else None)
        if before is not None:
            return before
        self._recent[name] = (content, where)
        if len(self._recent) > self._in_memory:
            self._file = self._file or _File(self._workdir)
            self._file.add(self._recent)
            self._recent = {}
        return None


class _File:
    """An LMDB environment that nobody needs after this process: nothing is synced."""

    def __init__(self, workdir: Path) -> None:
        self._folder = Path(_guard(lambda: tempfile.mkdtemp(prefix="survey-", dir=workdir), workdir))
        self._environment: lmdb.Environment = _guard(
            lambda: lmdb.open(
                str(self._folder),
                map_size=_FILE_SIZE,
                sync=False,
                metasync=False,
                lock=False,
                readahead=False,
            ),
            workdir,
        )

    def get(self, name: str) -> _Entry | None:
        with self._environment.begin() as transaction:
            value = transaction.get(_hashed(name))
        return None if value is None else msgspec.msgpack.decode(value, type=_Entry)

    def add(self, entries: dict[str, _Entry]) -> None:
        def write() -> None:
            with self._environment.begin(write=True) as transaction:
                for name, entry in sorted((_hashed(name), entry) for name, entry in entries.items()):
                    transaction.put(name, msgspec.msgpack.encode(entry))

        _guard(write, self._folder)

    def close(self) -> None:
        self._environment.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _hashed(name: str) -> bytes:
    # LMDB's keys have at most 511 bytes.
    return hashlib.sha256(name.encode()).digest()


def _guard(step: Callable[[], T], place: Path) -> T:
    try:
        return step()
    except (lmdb.Error, OSError) as error:
        raise StoreError(
            Problem(f"can't be written: {error}", file=str(place), cure="make room on this disk")
        ) from error
