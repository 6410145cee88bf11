"""What has become of the row that a record was made of."""

from __future__ import annotations

from enum import Enum

from fafo_run.item import BrokenRow, Record, Row


class RowNow(Enum):
    """How the row of a record stands in its source now; a broken row stands there like any other."""

    SAME = "same"
    CHANGED = "changed"
    """A row with its key is there, and has another content."""
    GONE = "gone"
    """No row has its key. A row without a key of its own, once it is mended, has another key."""


def row_now(record: Record, row: Row | BrokenRow) -> RowNow:
    """Return how a row with the key of the record stands to it."""
    return RowNow.SAME if row.content_hash == record.content_hash else RowNow.CHANGED
