"""The index of a reader that can't use LMDB's: the same, in memory, 44 bytes per identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fafo_run.results.index import Judge, Merged
from fafo_run.results.place import Place, Rows, fold, places
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table


class ArrayIndex:
    """The records of sealed segments, folded once. What is sealed later isn't in it."""

    version = 0
    """It never changes."""

    def __init__(self, tables: Sequence[Table], judge: Judge) -> None:
        """Take in the tables; `judge` reads the records that don't count. Raises `StoreError`."""
        self._rows, self._others = fold([table.part() for table in tables])
        self._high, self._others_high = (_high(rows) for rows in (self._rows, self._others))
        lost: dict[int, Tally] = {}
        for identity, place in places(self._others):
            lost.setdefault(place.sequence, Tally()).add_all(judge(identity, place))
        self._merged = {
            table.uuid: Merged(table.sequence, table.size, table.tally, lost.get(table.sequence, Tally()))
            for table in tables
        }

    def find(self, identities: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the places of those identities that it holds."""
        asked = list(identities)
        keys = np.frombuffer(b"".join(asked), ">u8").reshape(-1, 2)[:, 0].astype("u8")
        at = np.searchsorted(self._high, keys)
        hits = np.flatnonzero(at < len(self._high))
        hits = hits[self._high[at[hits]] == keys[hits]]
        found: dict[bytes, Place] = {}
        for number in hits.tolist():
            # Two identities that share their first half follow each other.
            for identity, place in _from(self._rows, self._high, int(at[number])):
                if identity == asked[number]:
                    found[identity] = place
        return found

    def earlier(self, identity: bytes) -> list[Place]:
        """Return the places of an identity's records that don't count."""
        key = np.frombuffer(identity, ">u8")[:1].astype("u8")
        at = int(np.searchsorted(self._others_high, key)[0])
        return [place for other, place in _from(self._others, self._others_high, at) if other == identity]

    def merged(self) -> dict[bytes, Merged]:
        """Return the segments that it holds, by uuid."""
        return dict(self._merged)

    def close(self) -> None:
        """Nothing is open."""


def _high(rows: Rows) -> Rows:
    return rows["high"].astype("u8")


def _from(rows: Rows, high: Rows, at: int) -> list[tuple[bytes, Place]]:
    """Return the rows from number `at` on whose identities begin like that one."""
    if at == len(rows):
        return []
    end = int(np.searchsorted(high, high[at], side="right"))
    return list(places(rows[at:end]))
