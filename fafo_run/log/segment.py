"""Writes one new segment: it owns the file and its end. It knows nothing of routes or payloads.

A segment has one writer, from its creation to its seal, and is never opened again for appending: a later
process seals what it finds (`recovery`) and starts another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash

from fafo_build.errors import StoreError
from fafo_run.log import format as layout
from fafo_run.log.format import HEADER_SIZE, NO_IDENTITY, Header, Kind, Seal
from fafo_run.log.fs import Disk, File, SyncFailed, refusing, sync_dir
from fafo_run.log.listing import segment_name


class Frame(NamedTuple):
    """What an entry will hold, before it has a place."""

    word: int
    """Kind and flags."""
    identity: bytes
    payload: bytes


class SegmentWriter:
    """The one appender of a segment. Not thread-safe.

    `stage` writes, `sync` makes durable; between the two `rollback` takes back what isn't durable yet.
    """

    def __init__(
        self,
        file: File,
        header: Header,
        end: int = HEADER_SIZE,
        count: int = 0,
        digest: xxhash.xxh3_64 | None = None,
    ) -> None:
        """Take over a file whose entries end at `end`: a new one, or one that recovery is about to seal."""
        self.file = file
        self.header = header
        self.synced = end
        """Where the durable entries end."""
        self.usable = True
        """False once a failed write couldn't be taken back: no more entries go here."""
        self._end = end
        self._count = count
        self._staged_count = 0
        self._staged: list[bytes] = []
        self._digest = xxhash.xxh3_64() if digest is None else digest

    @classmethod
    def create(cls, disk: Disk, folder: Path, header: Header) -> SegmentWriter:
        """Make a segment whose name and header are durable. Raises `StoreError`; then no segment is there."""
        path = folder / segment_name(header.sequence)
        temporary = path.with_name(path.name + ".tmp")
        file = File(disk, temporary, write=True, create=True)
        try:
            file.write_at(0, layout.pack_header(header))
            file.sync()
            refusing(path, disk.rename, temporary, path)
            file.path = path
            sync_dir(disk, folder)
        except BaseException:
            file.close()
            raise
        return cls(file, header)

    def stage(self, frames: Sequence[Frame]) -> list[int]:
        """Write entries behind the last one, and return their offsets. They aren't durable yet.

        Raises `StoreError` when the disk refuses; all that isn't durable has then been taken back.
        """
        offsets: list[int] = []
        parts: list[bytes] = []
        at = self._end
        for frame in frames:
            part = layout.pack_entry(self.header.uuid, at, frame.word, frame.identity, frame.payload)
            offsets.append(at)
            parts.append(part)
            at += len(part)
        data = b"".join(parts)
        try:
            self.file.write_at(self._end, data)
        except StoreError:
            self.rollback()
            raise
        self._staged.append(data)
        self._staged_count += len(frames)
        self._end = at
        return offsets

    def sync(self) -> None:
        """Make staged entries durable. Raises `SyncFailed`; the segment takes nothing after that."""
        try:
            self.file.sync()
        except SyncFailed:
            self.usable = False
            raise
        for data in self._staged:
            self._digest.update(data)
        self._count += self._staged_count
        self._forget_staged()
        self.synced = self._end

    def rollback(self) -> None:
        """Cut the file at the last durable entry; if that fails, the segment is given up as it stands."""
        self._forget_staged()
        self._end = self.synced
        try:
            self.file.truncate(self.synced)
            self.file.sync()
        except StoreError:
            # Debris may stand behind the durable entries: recovery cuts it. Appending over it is not safe.
            self.usable = False

    def seal(self, closing: Sequence[Frame] = ()) -> None:
        """Write `closing`, then the seal, durably. It takes nothing afterwards. Raises `StoreError`."""
        if closing:
            self.stage(closing)
            self.sync()
        seal = Seal(self._count, self.synced, self._digest.intdigest())
        self.stage([Frame(Kind.SEAL, NO_IDENTITY, layout.pack_seal(seal))])
        self.sync()
        self.usable = False

    def close(self) -> None:
        """Close the file as it stands."""
        self.file.close()

    def _forget_staged(self) -> None:
        self._staged = []
        self._staged_count = 0
