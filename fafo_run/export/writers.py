"""Files that are there whole or not at all: written beside their place, synced, then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from fafo_build.errors import DeclarationError, StoreError
from fafo_run.export.row import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1_000
"""Rows per Parquet record batch."""
_NUMBERS = ("sample", "prompt_tokens", "cached_tokens", "seed")


class Writer(Protocol):
    """Takes exported rows."""

    def write(self, row: dict[str, Any]) -> None:
        """Add one row."""

    def close(self) -> None:
        """Write what is still in memory."""


@contextmanager
def open_writer(path: Path) -> Iterator[Writer]:
    """Yield a writer for `path`, by its ending `.jsonl` or `.parquet`; the file appears when the block
    ends well.

    Raises `DeclarationError` for another ending and `StoreError` when the disk refuses; then a file
    that stood there before still does.
    """
    kinds: dict[str, Callable[[BinaryIO], Writer]] = {".jsonl": JsonLines, ".parquet": Parquet}
    kind = kinds.get(path.suffix)
    if kind is None:
        raise DeclarationError.of(
            f"can't tell the format from the ending of {path.name}", cure="end it in .jsonl or .parquet"
        )
    path = path.resolve()  # a link keeps pointing at what is written
    beside = path.with_name(f".fafo-{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            writer = kind(file)
            yield writer
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError.of(f"can't write {path}: {error.strerror}", cure=_cure(path, error)) from error
    finally:
        beside.unlink(missing_ok=True)


def _cure(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"make the folder {path.parent}"
    return "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "name another place"


class JsonLines:
    """One JSON object per line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    def write(self, row: dict[str, Any]) -> None:
        """Add one line."""
        self._file.write(self._encode(row) + b"\n")

    def close(self) -> None:
        """Nothing is held back."""


class Parquet:
    """One Parquet file; `row` and `sampling` are JSON text, since sources differ in their columns."""

    def __init__(self, file: BinaryIO) -> None:
        import pyarrow.parquet as pq

        self._schema = _schema()
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        """Add one row."""
        as_json = {name: msgspec.json.encode(row[name]).decode() for name in ("row", "sampling")}
        self._rows.append(row | as_json)
        if len(self._rows) >= _BATCH:
            self._flush()

    def close(self) -> None:
        """Write the rest and the footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"output_ids": pa.list_(pa.int32())} | dict.fromkeys(_NUMBERS, pa.int64())
    return pa.schema([pa.field(name, types.get(name, pa.string())) for name in COLUMNS])


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
