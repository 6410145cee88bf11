"""All records of one segment: as they are taken down one by one, and as a sorted table. No files."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from attrs import Factory, define, frozen

from fafo_run.item import Record
from fafo_run.results.place import Rows, in_order, make_rows
from fafo_run.results.summary import Tally

FAN = 256
"""A table can be read in as many parts, by the first byte of the identities."""


@frozen(eq=False)
class Table:
    """The records of one sealed segment that can be decoded, sorted by identity."""

    uuid: bytes
    sequence: int
    size: int
    """Of the segment's file, in bytes."""
    tally: Tally
    """Of all records, superseded ones too."""
    fan: tuple[int, ...]
    """Per first byte of an identity the number of rows before it; then the number of all rows."""
    read: Callable[[int, int], Rows]
    """Takes two numbers of rows, the end exclusive."""

    @classmethod
    def of(cls, uuid: bytes, sequence: int, size: int, tally: Tally, rows: Rows) -> Table:
        """Return the table of sorted rows that are in memory."""
        return cls(uuid, sequence, size, tally, fan_of(rows), lambda first, last: rows[first:last])

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.fan[FAN]

    def part(self, first: int = 0, last: int = FAN) -> Rows:
        """Return the rows whose identities begin with a byte from `first` on and below `last`."""
        return self.read(self.fan[first], self.fan[last])


def fan_of(rows: Rows) -> tuple[int, ...]:
    """Return the `fan` of sorted rows."""
    starts = np.arange(FAN, dtype="u8") << np.uint64(56)
    return (*np.searchsorted(rows["high"].astype("u8"), starts).tolist(), len(rows))


Noted = tuple[Record, int, int]
"""A record, the offset of its entry, its rank."""


@define(eq=False)
class Tail:
    """The records of a segment in the order in which they stand; 28 bytes each."""

    uuid: bytes
    sequence: int
    tally: Tally = Factory(Tally)
    """Of all records, superseded ones too."""
    identities: bytearray = Factory(bytearray)
    offsets: array[int] = Factory(lambda: array("Q"))
    ranks: array[int] = Factory(lambda: array("I"))

    def extend(self, records: Sequence[Noted]) -> None:
        """Take records down that stand behind the others."""
        self.identities += b"".join([record.identity for record, _, _ in records])
        self.offsets.extend([offset for _, offset, _ in records])
        self.ranks.extend([rank for _, _, rank in records])
        add = self.tally.add
        for record, _, _ in records:
            add(record)

    def rows(self) -> Rows:
        """Return the rows as they stand."""
        return make_rows(
            self.sequence, bytes(self.identities), np.array(self.offsets, "u8"), np.array(self.ranks, "u4")
        )

    def table(self, size: int) -> Table:
        """Return the sorted table of a segment that has its final size, in bytes."""
        return Table.of(self.uuid, self.sequence, size, self.tally, in_order(self.rows()))
