"""A dataset folder as `datasets.save_to_disk` writes it, read without the package `datasets`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from attrs import frozen

from fafo_build.errors import Problem, SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.arrow import BATCH, check_schema, rows_of
from fafo_run.sources.base import Source
from fafo_run.sources.paths import DataFile, cant_read, shown_path
from fafo_run.sources.rows import RowMaker, declared_error

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""How an Arrow stream ends."""


@frozen
class _DataFile:
    filename: str


class _State(msgspec.Struct):
    """What is used of `state.json`."""

    data_files: list[_DataFile] = msgspec.field(name="_data_files")
    indices_files: list[_DataFile] | None = msgspec.field(name="_indices_files", default=None)
    indices_data_files: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


class DatasetSource(Source):
    """The rows of one split, in the order of the shards."""

    def __init__(self, declared: Declared, root: Path) -> None:
        self.name = declared.name
        self._limit = declared.limit
        self._folder = root / declared.path[0]
        self._root = root
        self._maker = RowMaker.of(declared)

    def columns(self) -> tuple[str, ...]:
        """Return the columns of the dataset's features."""
        shards = self._shards()
        with _open(shards[0]) as stream, _reader(shards[0], stream) as reader:
            return check_schema(reader.schema, self._maker, shown_path(self._folder, self._root))

    def rows(self) -> Iterator[Row | BrokenRow]:
        """Read all shards."""
        return islice(self._rows(), self._limit)

    def _rows(self) -> Iterator[Row | BrokenRow]:
        self.columns()
        first = 1
        shown = shown_path(self._folder, self._root)
        for shard in self._shards():
            with _open(shard) as stream, _reader(shard, stream) as reader:
                while (batch := _next(reader, shard)) is not None:
                    # Writers choose the size of batches, and some write one for the whole shard.
                    for start in range(0, batch.num_rows, BATCH):
                        part = batch.slice(start, BATCH)
                        yield from rows_of(part, self._maker, first, lambda number: f"{shown} row {number}")
                        first += part.num_rows

    def _shards(self) -> list[DataFile]:
        shown = shown_path(self._folder, self._root)
        try:
            state = self._state(shown)
        except OSError as error:
            raise cant_read(shown, error) from error
        if state.indices_files or state.indices_data_files:
            raise SourceError(
                Problem(
                    "holds a selection of rows beside the rows, as old versions of datasets wrote it",
                    file=shown,
                    cure="load it and save it again with a newer version of datasets",
                )
            )
        shards = [self._folder / shard.filename for shard in state.data_files]
        if not shards:
            raise SourceError(Problem("has no data files", file=shown))
        files = [DataFile(shard, shown_path(shard, self._root)) for shard in shards]
        for file in files:
            _check_whole(file, self.name)
        return files

    def _state(self, shown: str) -> _State:
        """Raises `OSError` for what can't be looked at."""
        folder = self._folder
        if not folder.is_dir():
            message = f"{shown} is a file, not a folder" if folder.exists() else f"{shown} isn't there"
            raise declared_error(self.name, "path", message, cure="name a folder of datasets.save_to_disk")
        if (folder / "dataset_dict.json").exists():
            splits = sorted(child.parent.name for child in folder.glob("*/state.json"))
            raise declared_error(
                self.name,
                "path",
                f"{shown} has several splits: {', '.join(splits)}",
                cure=f'name one: path = "{shown}/{splits[0] if splits else "train"}"',
            )
        state = folder / "state.json"
        if not state.exists():
            raise declared_error(
                self.name,
                "path",
                f"{shown} has no state.json, so datasets.save_to_disk didn't write it",
                cure='for a folder of data files use type = "files"',
            )
        try:
            return msgspec.json.decode(state.read_bytes(), type=_State)
        except msgspec.DecodeError as error:
            raise SourceError(Problem(str(error), file=shown_path(state, self._root))) from error


def _check_whole(shard: DataFile, source: str) -> None:
    """Look for the mark at the end: Arrow takes a file that is cut between two batches for a whole one."""
    try:
        with shard.path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - len(_END)))
            end = stream.read()
    except OSError as error:
        raise cant_read(shard.shown, error) from error
    if end != _END:
        what = "is damaged: it doesn't end as an Arrow stream does" if size else "is empty"
        raise SourceError(
            Problem(what, file=shard.shown, field=f"source.{source}.path", cure="save the dataset again")
        )


def _open(shard: DataFile) -> Any:
    try:
        # Not mapped: a file that is cut short while it is mapped kills the process.
        return pa.OSFile(str(shard.path), "rb")
    except OSError as error:
        raise cant_read(shard.shown, error) from error


def _reader(shard: DataFile, stream: Any) -> Any:
    try:
        return pa.ipc.open_stream(stream)
    except pa.ArrowException as error:
        raise _broken(shard, error) from error


def _next(reader: Any, shard: DataFile) -> Any:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
    except (pa.ArrowException, OSError) as error:
        raise _broken(shard, error) from error


def _broken(shard: DataFile, error: Exception) -> SourceError:
    return SourceError(
        Problem(
            f"no Arrow file, or a damaged one: {str(error).splitlines()[0]}",
            file=shard.shown,
            cure="save the dataset again",
        )
    )
