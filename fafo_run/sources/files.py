"""A source of one or more files of one format: finds them, and reads them one after the other.

It knows nothing of what is inside: `jsonl`, `delimited` and `parquet` do.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from fafo_build.errors import Problem, SourceError
from fafo_build.project.declaration import FileFormat
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.base import Source
from fafo_run.sources.paths import DataFile, cant_read, no_rows, shown_path
from fafo_run.sources.rows import RowMaker, declared_error, quoted

ENDINGS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


class Format(Protocol):
    """How files of one kind are read."""

    def columns(self, file: DataFile, maker: RowMaker) -> tuple[str, ...] | None:
        """Return the file's columns, None where each row has its own. Raises `SourceError`."""
        ...

    def has_rows(self, file: DataFile) -> bool:
        """Tell whether the file has a row, good or broken, or may be without one."""
        ...

    def rows(self, file: DataFile, maker: RowMaker) -> Iterator[Row | BrokenRow]:
        """Read the file. Raises `SourceError` when it can't be read at all."""
        ...


class FilesSource(Source):
    """JSONL, CSV or Parquet files: in the declared order, those of one glob sorted by path."""

    def __init__(self, declared: Declared, root: Path) -> None:
        self.name = declared.name
        self._declared = declared
        self._root = root
        self._maker = RowMaker.of(declared)

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns; all files must have the same, in any order."""
        files = self._files()
        reader = self._format(files)
        first = reader.columns(files[0], self._maker)
        for file in files[1:]:
            other = reader.columns(file, self._maker)
            if first is not None and other is not None and set(first) != set(other):
                raise SourceError(
                    Problem(
                        f"its columns aren't those of {files[0].shown}: {quoted(sorted({*first} ^ {*other}))}"
                        " stand in one of the two only",
                        file=file.shown,
                        cure="declare a source for each kind of file",
                    )
                )
        for file in files:
            if not reader.has_rows(file):
                raise no_rows("has no rows", file.shown, self.name, alone=len(files) == 1)
        return first

    def rows(self) -> Iterator[Row | BrokenRow]:
        """Read all files."""
        return islice(self._rows(), self._declared.limit)

    def sample(self, most: int) -> Iterator[Row | BrokenRow]:
        """Read the first rows; files that aren't reached aren't opened."""
        return islice(islice(self._read(), self._declared.limit), most)

    def _rows(self) -> Iterator[Row | BrokenRow]:
        self.columns()
        yield from self._read()

    def _read(self) -> Iterator[Row | BrokenRow]:
        files = self._files()
        reader = self._format(files)
        for file in files:
            yield from reader.rows(file, self._maker)

    def _files(self) -> list[DataFile]:
        found: dict[Path, DataFile] = {}
        unmatched: list[str] = []
        for pattern in self._declared.path:
            try:
                matches = self._matches(pattern)
            except OSError as error:
                raise cant_read(pattern, error) from error
            if not matches:
                unmatched.append(pattern)
            for path in matches:
                found.setdefault(path, DataFile(path, shown_path(path, self._root)))
        if not found:
            raise declared_error(
                self.name,
                "path",
                f"no file matches {', '.join(unmatched)}",
                cure="mend the pattern, or make the files",
            )
        self.unmatched = tuple(unmatched)
        for file in found.values():
            _check_readable(file, self.name, alone=len(found) == 1)
        return list(found.values())

    def _matches(self, pattern: str) -> list[Path]:
        if "://" in pattern:
            raise declared_error(
                self.name, "path", f"{pattern} isn't a local path", cure="copy the files to this machine"
            )
        plain = self._root / pattern
        if not glob.has_magic(pattern) or plain.exists():
            return [plain]
        # Sorted, since the order in which a file system lists its files isn't stable.
        return sorted(self._root.glob(pattern) if not Path(pattern).is_absolute() else _absolute(pattern))

    def _format(self, files: list[DataFile]) -> Format:
        kinds = {file.shown: self._declared.format or ENDINGS.get(file.path.suffix.lower()) for file in files}
        for shown, kind in kinds.items():
            if kind is None:
                raise declared_error(
                    self.name,
                    "format",
                    f"the ending of {shown} says no format",
                    cure='add format = "jsonl", "csv" or "parquet"; compressed files must be unpacked first',
                )
        if len(set(kinds.values())) > 1:
            raise declared_error(
                self.name,
                "path",
                f"files of several formats: {', '.join(sorted({str(kind) for kind in kinds.values()}))}",
                cure="declare a source for each format",
            )
        return _reader(next(iter(kinds.values())))


def _absolute(pattern: str) -> list[Path]:
    return [Path(path) for path in glob.glob(pattern, recursive=True)]  # noqa: PTH207  Path.glob refuses these


def _check_readable(file: DataFile, source: str, *, alone: bool) -> None:
    try:
        if file.path.is_dir():
            raise declared_error(
                source,
                "path",
                f"{file.shown} is a folder",
                cure=f'name its files ("{file.shown}/*.parquet"); a folder of datasets.save_to_disk is '
                'type = "dataset"',
            )
        if not file.path.exists():
            raise declared_error(
                source, "path", f"{file.shown} isn't there", cure="paths are relative to the project folder"
            )
        if not file.path.is_file():
            # A source is read several times, which a pipe can't be.
            raise declared_error(source, "path", f"{file.shown} isn't a regular file")
        if file.path.stat().st_size == 0:
            raise no_rows("is empty", file.shown, source, alone=alone)
    except OSError as error:
        raise cant_read(file.shown, error) from error


def _reader(kind: FileFormat | None) -> Format:
    if kind == "csv":
        from fafo_run.sources.delimited import Csv

        return Csv()
    if kind == "parquet":
        from fafo_run.sources.parquet import Parquet

        return Parquet()
    from fafo_run.sources.jsonl import Jsonl

    return Jsonl()
