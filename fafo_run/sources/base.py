"""The contract of a source: a named set of rows, read in a stable order, as often as asked.

Every implementation passes `tests/contract/test_sources.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice

from fafo_run.item import BrokenRow, Row


class Source(ABC):
    """Rows from one place. Reading holds one batch of rows in memory, however many there are."""

    name: str
    """As declared."""
    unmatched: tuple[str, ...] = ()
    """The globs that no file matched when it was last looked for files, where others are there."""

    @abstractmethod
    def columns(self) -> tuple[str, ...] | None:
        """Return the columns that every row has, or None where each row decides for itself (JSONL).

        Raises `SourceError` when the source can't be read at all: absent, empty, no such table, not UTF-8,
        a key column that isn't there.
        """

    @abstractmethod
    def rows(self) -> Iterator[Row | BrokenRow]:
        """Read from the beginning, in an order that is the same every time while the source is unchanged.

        One bad row (torn JSON, a wrong number of columns, no key, a value that can't be hashed) is a
        `BrokenRow`; the rows after it are read all the same. Two rows with one key are not looked for here:
        `view.survey` does that over the whole source.

        Raises `SourceError` as `columns` does.
        """

    def sample(self, most: int) -> Iterator[Row | BrokenRow]:
        """Read the first rows, at most so many, and look at no more of the source than these need.

        Raises `SourceError` for what that shows.
        """
        return islice(self.rows(), most)
