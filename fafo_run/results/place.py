"""Where records are, one by one and as sorted rows, and which record of an identity counts. No files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fafo_run.item import Output, Record

OUTPUT_RANK = 0xFFFF_FFFF

Rows = NDArray[Any]
"""Places by identity, in the layout `ROW`: 36 bytes each, that sort as the numbers in them do."""
ROW = np.dtype([("high", ">u8"), ("low", ">u8"), ("sequence", ">u8"), ("offset", ">u8"), ("rank", ">u4")])
IDENTITY = 16
"""Bytes of a row before the place: `high` and `low`."""


class Place(NamedTuple):
    """Where a record is; a tuple because there are millions."""

    sequence: int
    offset: int
    rank: int
    """Of two records of one identity the higher counts, of equal ones the first: see `rank_of`."""

    @property
    def output(self) -> bool:
        """False for a failure."""
        return self.rank == OUTPUT_RANK

    def is_done(self, retry: int) -> bool:
        """Return whether an item that was put back `retry` times has nothing left to do."""
        return self.rank >= retry


def rank_of(record: Record) -> int:
    """Return the `retry` of a failure, and more than any for an output."""
    return OUTPUT_RANK if isinstance(record.outcome, Output) else min(record.retry, OUTPUT_RANK - 1)


def make_rows(sequence: int, identities: bytes | bytearray, offsets: Rows, ranks: Rows) -> Rows:
    """Return the rows of one segment, in the given order; `identities` has 16 bytes of each."""
    rows = np.empty(len(offsets), ROW)
    halves = np.frombuffer(identities, ">u8").reshape(-1, 2)
    rows["high"], rows["low"] = halves[:, 0], halves[:, 1]
    rows["sequence"], rows["offset"], rows["rank"] = sequence, offsets, ranks
    return rows


def in_order(rows: Rows) -> Rows:
    """Return rows sorted by identity; of one identity the row that counts stands first."""
    high = rows["high"].astype("u8")
    order = np.argsort(high)
    # Half an identity tells all records apart but those of one identity: the long sort is for these.
    if (high[order][1:] == high[order][:-1]).any():
        low, above = rows["low"].astype("u8"), OUTPUT_RANK - rows["rank"].astype("u8")
        order = np.lexsort((rows["offset"].astype("u8"), rows["sequence"].astype("u8"), above, low, high))
    return rows[order]


def fold(parts: Sequence[Rows]) -> tuple[Rows, Rows]:
    """Return the rows that count, one per identity, and the others; both sorted."""
    # Unless it is told, numpy joins in the machine's byte order.
    rows = in_order(np.concatenate(parts, dtype=ROW)) if parts else np.empty(0, ROW)
    counts = np.ones(len(rows), bool)
    high, low = rows["high"], rows["low"]
    counts[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return rows[counts], rows[~counts]


def places(rows: Rows) -> Iterator[tuple[bytes, Place]]:
    """Yield identities and places, in order."""
    data = rows.tobytes()
    columns = (rows["sequence"].tolist(), rows["offset"].tolist(), rows["rank"].tolist())
    for at, place in enumerate(zip(*columns, strict=True)):
        yield data[at * ROW.itemsize : at * ROW.itemsize + IDENTITY], Place._make(place)


def identities(rows: Rows) -> list[bytes]:
    """Return the identities, in order."""
    data, size = rows.tobytes(), ROW.itemsize
    return [data[at : at + IDENTITY] for at in range(0, len(data), size)]


def split(rows: Rows) -> list[tuple[bytes, bytes]]:
    """Return the bytes of each row: of its identity, and of its place."""
    data, size = rows.tobytes(), ROW.itemsize
    return [(data[at : at + IDENTITY], data[at + IDENTITY : at + size]) for at in range(0, len(data), size)]
