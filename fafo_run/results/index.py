"""The index: identity to place, filled per sealed segment. Derived, and may be deleted at any moment.

What it holds depends on the segments alone that it took in, not on the order: of each identity the place that
counts, the others aside, and per segment the sums of its records and of those that don't count.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
from attrs import frozen

from fafo_run.log.fs import Disk, sync_dir
from fafo_run.log.listing import segment_name
from fafo_run.results.environment import MAP_SIZE, Environment, UnusableIndexError, refused
from fafo_run.results.place import IDENTITY, ROW, Place, Rows, fold, places, split
from fafo_run.results.summary import Tally
from fafo_run.results.table import FAN, Table

FORMAT = b"3"
BATCH = 1_000_000
"""Rows of one transaction, about: LMDB takes large sorted batches several times faster than small ones."""
_PLACE = struct.Struct(">QQI")
_SEGMENT = struct.Struct(">QQ")
_SEQUENCE = struct.Struct(">Q")
_RANK = struct.Struct(">I")
_SUPERSEDED = ROW.itemsize - _RANK.size
"""Bytes of a row before its rank: these rows stand under all of it, since an identity has several."""

Judge = Callable[[bytes, Place], Tally]
"""Takes a record by identity and place; returns its sums, none when it can't be read."""


@frozen
class Merged:
    """What the index knows of a segment that it holds."""

    sequence: int
    size: int
    """Of the file when it was merged, in bytes."""
    tally: Tally
    """Of all its records, superseded ones too."""
    lost: Tally
    """Of its records that don't count, because another of the same identity does."""


def changed(merged: Mapping[bytes, Merged], sizes: Mapping[bytes, int]) -> Iterator[str]:
    """Yield a line for each segment that isn't as it was when it was merged; its name may be another.

    `sizes` is what is there: the size of each segment in bytes, by uuid.
    """
    for uuid, was in sorted(merged.items(), key=lambda item: item[1].sequence):
        size = sizes.get(uuid)
        if size is None:
            yield f"{segment_name(was.sequence)}: gone, or its header is; {was.size} bytes in the index"
        elif size != was.size:
            yield f"{segment_name(was.sequence)}: {size} bytes, {was.size} when the index took it in"


class Index:
    """An open index in LMDB. Its reads may come from any thread; one thread merges."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        # Others may have the same environment open: it is given back once.
        self._closed = False

    @classmethod
    def open(cls, path: Path, store: str, *, write: bool, map_size: int = MAP_SIZE) -> Index:
        """Open the index of the store with this uuid. Raises `UnusableIndexError`; nothing is created."""
        environment = Environment.shared(path, write=write, map_size=map_size)
        meta = environment.tables[b"meta"]
        try:
            found = environment.read(lambda to: (to.get(b"format", db=meta), to.get(b"store", db=meta)))
            if found != (FORMAT, store.encode()):
                raise UnusableIndexError("the index is of another store or format")
        except BaseException:
            environment.close()
            raise
        return cls(environment)

    @property
    def version(self) -> int:
        """The number of the last change; changes by other processes count too."""
        return self._environment.version

    def find(self, identities: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the places of those identities that the index holds. Raises `UnusableIndexError`."""
        entries = self._environment.tables[b"entries"]

        def look(transaction: lmdb.Transaction) -> dict[bytes, Place]:
            get = transaction.cursor(entries).get
            values = [(identity, get(identity)) for identity in identities]
            return {identity: _place(value) for identity, value in values if value is not None}

        return self._environment.read(look)

    def earlier(self, identity: bytes) -> list[Place]:
        """Return the places of an identity's records that don't count. Raises `UnusableIndexError`."""
        superseded = self._environment.tables[b"superseded"]

        def look(transaction: lmdb.Transaction) -> list[Place]:
            found = []
            cursor = transaction.cursor(superseded)
            if cursor.set_range(identity):
                for key, value in cursor:
                    if bytes(key)[:IDENTITY] != identity:
                        break
                    found.append(_place(bytes(key)[IDENTITY:] + bytes(value)))
            return found

        return self._environment.read(look)

    def merged(self) -> dict[bytes, Merged]:
        """Return the segments that the index holds, by uuid. Raises `UnusableIndexError`."""
        tables = self._environment.tables

        def look(transaction: lmdb.Transaction) -> dict[bytes, Merged]:
            found: dict[bytes, Merged] = {}
            for uuid, value in transaction.cursor(tables[b"segments"]):
                sequence, size = _SEGMENT.unpack_from(value)
                lost = transaction.get(_SEQUENCE.pack(sequence), db=tables[b"lost"])
                tally = Tally.unpack(bytes(value)[_SEGMENT.size :])
                found[bytes(uuid)] = Merged(
                    sequence, size, tally, Tally.unpack(bytes(lost)) if lost else Tally()
                )
            return found

        try:
            return self._environment.read(look)
        except (struct.error, TypeError, ValueError) as error:
            raise UnusableIndexError(str(error)) from error

    def merge(self, tables: Sequence[Table], judge: Judge) -> None:
        """Take in sealed segments that it doesn't hold, durably and whole.

        Raises `StoreError` or `UnusableIndexError`; then nothing was taken in.
        """
        counting, others = fold([table.part() for table in tables])

        def put(transaction: lmdb.Transaction) -> None:
            beaten = list(places(others))
            entries = transaction.cursor(self._environment.tables[b"entries"])
            pairs = split(counting)
            _, added = entries.putmulti(pairs, overwrite=False)
            if added < len(pairs):
                beaten += _contest(entries, pairs)
            _put_beaten(transaction, self._environment, beaten, judge)
            _put_segments(transaction, self._environment, tables)

        self._environment.change(put)

    def close(self) -> None:
        """Close; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._environment.close()


def build(path: Path, store: str, tables: Sequence[Table], judge: Judge, *, map_size: int = MAP_SIZE) -> None:
    """Make the index of these segments in place of what was there. Raises `StoreError`.

    It is made beside and put there whole. Whoever has the old one open goes on with that.
    """
    fresh, dead = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".dead")
    try:
        for leftover in (fresh, dead):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir()
        # Nobody sees it before it is whole: one sync at the end is enough.
        environment = Environment(fresh, write=True, create=True, durable=False, map_size=map_size)
        try:
            for first, last in _parts(sum(table.count for table in tables)):
                _append(environment, fold([table.part(first, last) for table in tables]), judge)
            environment.change(lambda transaction: _put_segments(transaction, environment, tables, store))
            environment.sync()
        finally:
            environment.close()
        sync_dir(Disk(), fresh)
        if path.exists():
            path.rename(dead)
        fresh.rename(path)
        sync_dir(Disk(), path.parent)
        shutil.rmtree(dead, ignore_errors=True)
    except (lmdb.Error, OSError, UnusableIndexError) as error:
        raise refused(path, error) from error


def remove(disk: Disk, path: Path) -> None:
    """Remove an index that isn't open. Raises `StoreError`."""
    dead = path.with_name(path.name + ".dead")
    try:
        shutil.rmtree(dead, ignore_errors=True)
        if path.exists():
            path.rename(dead)
            sync_dir(disk, path.parent)
            shutil.rmtree(dead)
    except OSError as error:
        raise refused(path, error) from error


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """Cut the first bytes of identities into ranges of about `BATCH` rows each."""
    number = min(FAN, max(1, -(-count // BATCH)))
    edges = [FAN * at // number for at in range(number + 1)]
    return pairwise(edges)


def _append(environment: Environment, folded: tuple[Rows, Rows], judge: Judge) -> None:
    counting, others = folded

    def put(transaction: lmdb.Transaction) -> None:
        transaction.cursor(environment.tables[b"entries"]).putmulti(split(counting), append=True)
        _put_beaten(transaction, environment, list(places(others)), judge)

    environment.change(put)


def _contest(entries: lmdb.Cursor, pairs: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, Place]]:
    """Hold rows against those that stood there already; put those that count, return the others."""
    beaten: list[tuple[bytes, Place]] = []
    standing = entries.getmulti([identity for identity, _ in pairs])
    for (identity, ours), (_, theirs) in zip(pairs, standing, strict=True):
        if ours == theirs:
            continue
        new, old = _place(ours), _place(theirs)
        if new.rank > old.rank:
            entries.put(identity, ours)
            beaten.append((identity, old))
        else:
            beaten.append((identity, new))
    return beaten


def _put_beaten(
    transaction: lmdb.Transaction,
    environment: Environment,
    beaten: Sequence[tuple[bytes, Place]],
    judge: Judge,
) -> None:
    """Set rows that don't count aside, and add them to the sums of their segments."""
    sums: dict[int, Tally] = {}
    for identity, place in sorted(beaten, key=lambda one: one[1]):
        sums.setdefault(place.sequence, Tally()).add_all(judge(identity, place))
    rows = sorted((identity + _PLACE.pack(*place)) for identity, place in beaten)
    table = transaction.cursor(environment.tables[b"superseded"])
    table.putmulti((row[:_SUPERSEDED], row[_SUPERSEDED:]) for row in rows)
    lost = environment.tables[b"lost"]
    for sequence, tally in sums.items():
        key = _SEQUENCE.pack(sequence)
        known = transaction.get(key, db=lost)
        if known is not None:
            tally.add_all(Tally.unpack(bytes(known)))
        transaction.put(key, tally.pack(), db=lost)


def _put_segments(
    transaction: lmdb.Transaction, environment: Environment, tables: Iterable[Table], store: str = ""
) -> None:
    for table in tables:
        value = _SEGMENT.pack(table.sequence, table.size) + table.tally.pack()
        transaction.put(table.uuid, value, db=environment.tables[b"segments"])
    if store:
        transaction.put(b"format", FORMAT, db=environment.tables[b"meta"])
        transaction.put(b"store", store.encode(), db=environment.tables[b"meta"])


def _place(value: Any) -> Place:
    return Place._make(_PLACE.unpack(value))
