"""The keys of a source that is read whole: which stand there once more, and whether with the same content.

In memory while they are few. Else they go into files, by a hash of theirs, and each of these is looked
through by itself at the end: so memory hardly grows with the rows. It knows nothing of rows.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from attrs import frozen

from fafo_build.errors import Problem, StoreError

IN_MEMORY = 200_000
"""Keys that are held in memory, about 60 MB. More go into files."""
_PARTS = 256
"""Files. At the end one is in memory: some 2 MB for every million rows of the source."""
_LENGTH = 4
"""Bytes before each block of a file, that say how long it is."""


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
    """Takes keys one by one. Raises `StoreError` when the files can't be written or read."""

    def __init__(self, workdir: Path, in_memory: int = IN_MEMORY) -> None:
        """The files lie in a folder of their own in `workdir`, and are deleted at the end."""
        self._workdir = workdir
        self._in_memory = in_memory
        self._recent: dict[str, _Entry] = {}
        self._folder: Path | None = None

    def __enter__(self) -> Keys:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

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
        if self._folder is None:
            return
        self._put_away()
        for path in sorted(self._folder.iterdir()):
            first: dict[str, _Entry] = {}
            for entry in _guard(partial(_read, path), path):
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
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="survey-", dir=self._workdir))
        for part, entries in parts.items():
            block = _encode(entries)
            with (self._folder / f"{part:03}").open("ab") as file:
                file.write(len(block).to_bytes(_LENGTH, "little") + block)


def _twice(before: _Entry, entry: _Entry) -> Twice:
    first, second = (each.where.decode("utf-8", "surrogateescape") for each in (before, entry))
    return Twice(entry.name, before.content == entry.content, first, second)


def _read(path: Path) -> list[_Entry]:
    """Return the entries of a file, in the order in which they were put."""
    data, at, found = path.read_bytes(), 0, list[_Entry]()
    while at < len(data):
        begin = at + _LENGTH
        at = begin + int.from_bytes(data[at:begin], "little")
        found += _decode(data[begin:at])
    return found


T = TypeVar("T")


def _guard(step: Callable[[], T], place: Path) -> T:
    try:
        return step()
    except OSError as error:
        raise StoreError(
            Problem(f"can't be written or read: {error}", file=str(place), cure="make room on this disk")
        ) from error
