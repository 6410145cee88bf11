"""Writes one new segment: it owns the file and its end. It knows nothing of routes or payloads.

A segment has one writer, from its creation to its seal, and is never opened again for appending: a later
process seals what it finds (`recovery`) and starts another.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import xxhash

from fafo_build.errors import StoreError
from fafo_run.log import format as layout
from fafo_run.log.batch import Frames, pack_entries
from fafo_run.log.format import HEADER_SIZE, NO_IDENTITY, Header, Kind, Seal, SegmentKind
from fafo_run.log.fs import Disk, File, SyncFailed, refusing, sync_dir
from fafo_run.log.listing import segment_name


class SegmentWriter:
    """The one appender of a segment. Not thread-safe.

    `stage` writes, `sync` makes durable; between the two `rollback` takes back what isn't durable yet.
    While a segment of the queue grows, its writer holds a shared flock on it: so another process can tell one
    that is written from one whose writer is gone.
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
        """Where the entries end that are never taken back: they are durable, but for a COMMIT after them."""
        self.usable = True
        """False once a failed write couldn't be taken back: no more entries go here."""
        self._end = self._vouched = end
        self._count = count
        self._staged_count = 0
        self._staged: list[bytes] = []
        self._digest = xxhash.xxh3_64() if digest is None else digest

    @classmethod
    def create(cls, disk: Disk, folder: Path, header: Header) -> SegmentWriter:
        """Make a segment whose name and header are durable. The caller holds the `folder_lock`.

        Raises `StoreError`; then no segment is there.
        """
        path = folder / segment_name(header.sequence)
        temporary = path.with_name(path.name + ".tmp")
        file = File(disk, temporary, write=True, create=True)
        try:
            if header.kind is SegmentKind.QUEUE:
                # Before it has its name: whoever finds it finds it held.
                refusing(path, disk.lock, file.fd, exclusive=False)
            file.write_at(0, layout.pack_header(header))
            file.sync()
            refusing(path, disk.rename, temporary, path)
            file.path = path
            sync_dir(disk, folder)
        except BaseException:
            file.close()
            raise
        return cls(file, header)

    def stage(self, frames: Frames) -> list[int]:
        """Write entries behind the last one, and return their offsets. They aren't durable yet.

        Raises `StoreError` when the disk refuses; all that isn't durable has then been taken back.
        """
        data, offsets = pack_entries(self.header.uuid, self._end, frames)
        try:
            self.file.write_at(self._end, data)
        except StoreError:
            self.rollback()
            raise
        self._staged.append(data)
        self._staged_count += len(offsets)
        self._end += len(data)
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

    @property
    def unvouched(self) -> int:
        """Bytes of durable entries after the last COMMIT."""
        return self.synced - self._vouched

    def vouch(self) -> None:
        """Write a COMMIT: that all before it is durable, and what the content is.

        It isn't synced itself: whoever sees it after a power cut sees it behind entries that were synced. A
        refusal isn't the batch's: that is durable, and the next COMMIT or the seal says so as well.
        """
        payload = layout.pack_commit(self._digest.intdigest())
        entry = layout.pack_entry(self.header.uuid, self.synced, Kind.COMMIT, NO_IDENTITY, payload)
        try:
            self.file.write_at(self.synced, entry)
        except StoreError:
            self.rollback()
            return
        # From now on somebody may have mapped what is before it: no rollback cuts there any more.
        self._digest.update(entry)
        self._count += 1
        self._end = self.synced = self._vouched = self.synced + len(entry)

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

    def seal(self, provenance: Sequence[bytes] = ()) -> None:
        """Write PROVENANCE entries, then the seal, durably; nothing follows these. Raises `StoreError`."""
        if provenance:
            self.stage(Frames.unnamed(Kind.PROVENANCE, provenance))
            self.sync()
        seal = Seal(self._count, self.synced, self._digest.intdigest())
        self.stage(Frames.unnamed(Kind.SEAL, [layout.pack_seal(seal)]))
        self.sync()
        self.usable = False

    def close(self) -> None:
        """Close the file as it stands."""
        self.file.close()

    def _forget_staged(self) -> None:
        self._staged = []
        self._staged_count = 0
