"""The LMDB index: identity to place, filled per sealed segment. Derived, and may be deleted at any moment.

What it holds of a segment (places, sums, that it was merged at all) goes in with one transaction.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb
from attrs import frozen

from fafo_build.errors import Problem, StoreError
from fafo_run.log.fs import gone
from fafo_run.log.listing import segment_name
from fafo_run.results.summary import Tally

FORMAT = b"1"
_DATA = "data.mdb"
_SIZE = "SIZE"
MAP_SIZE = 16 << 30
"""Bytes of address space, not of disk; doubled when it is full."""
_PLACE = struct.Struct(">QQ")
_SEGMENT = struct.Struct("<QQ")
_PROBE = """
import sys, lmdb
with lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=4) as env, env.begin() as txn:
    for name in (b"entries", b"segments", b"superseded", b"meta"):
        for _ in txn.cursor(env.open_db(name, txn=txn, create=False)):
            pass
"""


class Place(NamedTuple):
    """Where a record is; a tuple because there are millions."""

    sequence: int
    offset: int
    output: bool
    """False for a failure."""

    @property
    def key(self) -> bytes:
        """16 bytes that sort as places do."""
        return _PLACE.pack(self.sequence, self.offset)


@frozen
class Merged:
    """What the index knows of a segment that it holds."""

    sequence: int
    size: int
    """Of the file when it was merged, in bytes."""
    tally: Tally
    """Of all its records, superseded ones too."""


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


class UnusableIndexError(Exception):
    """The index is absent, of another store or format, or not what LMDB can read. It can be rebuilt."""


class Index:
    """An open index. Its reads may come from any thread; one thread merges."""

    def __init__(self, environment: lmdb.Environment, path: Path, *, write: bool) -> None:
        self._environment = environment
        self._path = path
        self._write = write
        # Held for each read, so that no transaction is open while the map grows.
        self._gate = threading.Lock()
        self._entries = environment.open_db(b"entries", create=False)
        self._segments = environment.open_db(b"segments", create=False)
        self._superseded = environment.open_db(b"superseded", create=False)

    @classmethod
    def open(cls, path: Path, store: str, *, write: bool, map_size: int = MAP_SIZE) -> Index:
        """Open the index of the store with this uuid. Raises `UnusableIndexError`; nothing is created."""
        if not (path / _DATA).is_file():
            raise UnusableIndexError("there is no index")
        try:
            environment = _environment(path, map_size, readonly=not write)
        except (lmdb.Error, OSError) as error:
            raise UnusableIndexError(str(error)) from error
        try:
            meta = environment.open_db(b"meta", create=False)
            with environment.begin(meta) as transaction:
                found = (transaction.get(b"format"), transaction.get(b"store"))
            if found != (FORMAT, store.encode()):
                raise UnusableIndexError("the index is of another store or format")
            if write:
                environment.reader_check()
            return cls(environment, path, write=write)
        except lmdb.Error as error:
            environment.close()
            raise UnusableIndexError(str(error)) from error
        except UnusableIndexError:
            environment.close()
            raise

    @classmethod
    def create(cls, path: Path, store: str, *, map_size: int = MAP_SIZE) -> Index:
        """Make an empty index in place of what was there. Raises `StoreError`."""
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(exist_ok=True)
            environment = _environment(path, map_size, readonly=False)
            for name in (b"entries", b"segments", b"superseded", b"meta"):
                environment.open_db(name)
            with environment.begin(environment.open_db(b"meta"), write=True) as transaction:
                transaction.put(b"format", FORMAT)
                transaction.put(b"store", store.encode())
        except (lmdb.Error, OSError) as error:
            raise _refused(path, error) from error
        return cls(environment, path, write=True)

    def find(self, identities: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the places of those identities that the index holds. Raises `UnusableIndexError`."""
        found: dict[bytes, Place] = {}
        try:
            with self._gate, self._environment.begin(self._entries) as transaction:
                for identity in identities:
                    value = transaction.get(identity)
                    if value is not None:
                        found[identity] = _place(value)
        except (lmdb.Error, struct.error) as error:
            raise UnusableIndexError(str(error)) from error
        return found

    def merged(self) -> dict[bytes, Merged]:
        """Return the segments that the index holds, by uuid. Raises `UnusableIndexError`."""
        found: dict[bytes, Merged] = {}
        try:
            with self._gate, self._environment.begin(self._segments) as transaction:
                for uuid, value in transaction.cursor():
                    sequence, size = _SEGMENT.unpack_from(value)
                    found[uuid] = Merged(sequence, size, Tally.unpack(value[_SEGMENT.size :]))
        except (lmdb.Error, struct.error, TypeError, ValueError) as error:
            raise UnusableIndexError(str(error)) from error
        return found

    def superseded(self) -> dict[bytes, Tally]:
        """Return the records that don't count any more, by `Place.key`. Raises `UnusableIndexError`."""
        try:
            with self._gate, self._environment.begin(self._superseded) as transaction:
                return {key: Tally.unpack(value) for key, value in transaction.cursor()}
        except (lmdb.Error, TypeError, ValueError) as error:
            raise UnusableIndexError(str(error)) from error

    def merge(
        self, uuid: bytes, merged: Merged, places: Mapping[bytes, Place], superseded: Mapping[bytes, Tally]
    ) -> None:
        """Take in a sealed segment, durably and whole. Raises `StoreError`; then nothing was taken in."""
        entries = [
            (identity, place.key + (b"\1" if place.output else b"\0"))
            for identity, place in sorted(places.items())
        ]
        losers = sorted((key, tally.pack()) for key, tally in superseded.items())
        segment = _SEGMENT.pack(merged.sequence, merged.size) + merged.tally.pack()
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    transaction.cursor(self._entries).putmulti(entries)
                    transaction.cursor(self._superseded).putmulti(losers)
                    transaction.put(uuid, segment, db=self._segments)
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                raise _refused(self._path, error) from error
            else:
                return

    def close(self) -> None:
        """Close; safe to call twice. A writer notes how large it leaves the index, for `is_whole`."""
        with self._gate:
            self._environment.close()
            if self._write:
                # Without the note the next start looks closer; that is all it costs.
                with suppress(OSError):
                    (self._path / _SIZE).write_text(str((self._path / _DATA).stat().st_size), "ascii")

    def _grow(self) -> None:
        with self._gate:
            self._environment.set_mapsize(self._environment.info()["map_size"] * 2)


def is_whole(path: Path) -> bool:
    """Return whether an index is no shorter than its writer left it: a shorter one kills its reader."""
    try:
        return (path / _DATA).stat().st_size >= int((path / _SIZE).read_text("ascii"))
    except (OSError, ValueError):
        return False


def probe(path: Path) -> bool:
    """Return whether a child process can read the whole index and live: damage can kill its reader."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(path)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


def _environment(path: Path, map_size: int, *, readonly: bool) -> lmdb.Environment:
    return lmdb.open(
        str(path),
        map_size=map_size,
        readonly=readonly,
        create=not readonly,
        max_dbs=4,
        sync=True,
        metasync=True,
        writemap=False,
        map_async=False,
        lock=True,
        readahead=False,
        max_readers=512,
    )


def _place(value: bytes) -> Place:
    sequence, offset = _PLACE.unpack_from(value)
    return Place(sequence, offset, value[_PLACE.size :] == b"\1")


def _refused(path: Path, error: Exception) -> StoreError:
    if isinstance(error, FileNotFoundError):
        return gone(path)
    cure = "free some space and start the run again; results are safe, the index is rebuilt from them"
    return StoreError(Problem(f"the index can't be written: {error}", file=str(path), cure=cure))
