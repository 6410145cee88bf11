"""The keys of a source that is read whole: which stand there once more, and whether with the same content.

In memory while they are few. Else they go into a file, in parts by a hash of theirs, and each part is looked
through by itself at the end: so memory hardly grows with the rows. It knows nothing of rows.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import msgspec
from attrs import frozen

from fafo_build.errors import Problem, StoreError

IN_MEMORY = 200_000
"""Keys that are held in memory, about 60 MB. More go into a file."""
_PARTS = 256
"""At the end one is in memory: some 2 MB for every million rows of the source."""
_LENGTH = 4
"""Bytes before each block of the file, that say how long it is."""


@frozen
class Twice:
    """A key that stands there once more."""

    name: str
    is_equal: bool
    """Whether both have one content."""
    first: str
    """Where an earlier one stands."""
    second: str


class _Entry(msgspec.Struct, array_like=True, gc=False):
    name: str
    content: bytes
    where: bytes
    """File names needn't be UTF-8, and stand here as they are."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Entry]).decode


class Keys:
    """Takes keys one by one. Raises `StoreError` when the file can't be written or read."""

    def __init__(self, workdir: Path, in_memory: int = IN_MEMORY) -> None:
        """The file lies in `workdir` and has no name: nothing is left of it, however the process ends."""
        self._workdir = workdir
        self._in_memory = in_memory
        self._recent: dict[str, _Entry] = {}
        self._file: IO[bytes] | None = None
        self._blocks = [array("Q") for _ in range(_PARTS)]
        """Of each part, where its blocks begin in the file."""

    def __enter__(self) -> Keys:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            _guard(self._file.close, self._workdir)

    def put(self, name: str, content: bytes, where: str) -> Twice | None:
        """Take a key, and return it when it is seen to stand there once more; `later` tells of the others."""
        entry = _Entry(name, content, where.encode("utf-8", "surrogateescape"))
        before = self._recent.setdefault(name, entry)
        if before is not entry:
            return _twice(before, entry)
        if len(self._recent) > self._in_memory:
            self._put_away()
        return None

    def later(self) -> Iterator[Twice]:
        """Yield those keys that stand there once more and that `put` couldn't see, in no order."""
        if self._file is None:
            return
        self._put_away()
        for blocks in self._blocks:
            first: dict[str, _Entry] = {}
            for entry in _guard(partial(_read, self._file, blocks), self._workdir):
                before = first.setdefault(entry.name, entry)
                if before is not entry:
                    yield _twice(before, entry)

    def _put_away(self) -> None:
        parts: dict[int, list[_Entry]] = {}
        for name, entry in self._recent.items():
            parts.setdefault(zlib.crc32(name.encode()) % _PARTS, []).append(entry)
        self._recent = {}
        _guard(partial(self._write, parts), self._workdir)

    def _write(self, parts: dict[int, list[_Entry]]) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._workdir)  # noqa: SIM115
        for part, entries in parts.items():
            block = _encode(entries)
            self._blocks[part].append(self._file.seek(0, os.SEEK_END))
            self._file.write(len(block).to_bytes(_LENGTH, "little") + block)
        self._file.flush()


def _twice(before: _Entry, entry: _Entry) -> Twice:
    first, second = (each.where.decode("utf-8", "surrogateescape") for each in (before, entry))
    return Twice(entry.name, before.content == entry.content, first, second)


def _read(file: IO[bytes], blocks: array[int]) -> list[_Entry]:
    """Return the entries of a part, in the order in which they were put."""
    found = list[_Entry]()
    for at in blocks:
        file.seek(at)
        found += _decode(file.read(int.from_bytes(file.read(_LENGTH), "little")))
    return found


T = TypeVar("T")


def _guard(step: Callable[[], T], place: Path) -> T:
    try:
        return step()
    except OSError as error:
        raise StoreError(
            Problem(f"can't be written or read: {error}", file=str(place), cure="make room on this disk")
        ) from error
