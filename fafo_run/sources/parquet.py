"""Parquet files, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fafo_build.errors import Problem, SourceError
from fafo_run.item import BrokenRow, Row
from fafo_run.sources.arrow import BATCH, check_schema, rows_of
from fafo_run.sources.paths import DataFile, cant_read
from fafo_run.sources.rows import RowMaker


class Parquet:
    """Reads Parquet."""

    def columns(self, file: DataFile, maker: RowMaker) -> tuple[str, ...]:
        """Return the columns of the file's schema."""
        with _open(file) as opened:
            return check_schema(opened.schema_arrow, maker, file.shown)

    def has_rows(self, file: DataFile) -> bool:
        """Return True: what a program wrote may rightly have no row."""
        return True

    def rows(self, file: DataFile, maker: RowMaker) -> Iterator[Row | BrokenRow]:
        """Read the file."""
        first = 1
        with _open(file) as opened:
            check_schema(opened.schema_arrow, maker, file.shown)
            batches = opened.iter_batches(batch_size=BATCH)
            while (batch := _next(batches, file)) is not None:
                yield from rows_of(batch, maker, first, lambda number: f"{file.shown} row {number}")
                first += batch.num_rows


def _open(file: DataFile) -> Any:
    try:
        # Without pre-buffering, which holds a whole row group; a truncated file must not be mapped.
        return pq.ParquetFile(file.path, pre_buffer=False, memory_map=False)
    except pa.ArrowException as error:
        raise _broken(file, error) from error
    except OSError as error:
        # Without a number it isn't from the system: Arrow says so of files that it can't decode.
        raise (cant_read(file.shown, error) if error.errno else _broken(file, error)) from error


def _next(batches: Iterator[Any], file: DataFile) -> Any:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise _broken(file, error) from error


def _broken(file: DataFile, error: Exception) -> SourceError:
    return SourceError(
        Problem(
            f"no Parquet file, or a damaged one: {str(error).splitlines()[0]}",
            file=file.shown,
            cure="make it again, or declare its format",
        )
    )
