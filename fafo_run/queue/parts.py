"""The segments of a queue as a run has them: found in the folder, followed while they grow, collected."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from fafo_build.errors import StoreError
from fafo_run.log.appender import OpenSegment, Placed
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import HEADER_SIZE
from fafo_run.log.fs import File, SyncFailed, refusing
from fafo_run.log.listing import SegmentFile, remove_segment, segments
from fafo_run.log.reader import Scan, read_header, scan, seal_of
from fafo_run.log.recovery import mend
from fafo_run.queue.part import Part
from fafo_run.queue.selection import EVERYTHING, Selection


class Parts:
    """One caller at a time for each method but `get` and iteration; what these show changes under `state`."""

    def __init__(self, directory: RunDirectory, state: threading.Lock) -> None:
        self.findings: list[str] = []
        """One line for people per thing that was mended since the queue was opened."""
        self.failed: StoreError | None = None
        """Set when a sync was refused."""
        self.selection = EVERYTHING
        """What this run is after; the others keep waiting for another run."""
        self._directory = directory
        self._disk = directory.disk
        self._state = state
        self._parts: dict[bytes, Part] = {}

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts, in no order; the caller holds `state`."""
        return iter(self._parts.values())

    def get(self, segment: bytes) -> Part | None:
        """Return the part with this uuid; None when it was collected. The caller holds `state`."""
        return self._parts.get(segment)

    def listed(self) -> list[Part]:
        """Return the parts as they are now."""
        with self._state:
            return list(self._parts.values())

    def unknown(self) -> list[SegmentFile]:
        """Return the segments in the folder that aren't parts yet; nothing may be appended meanwhile."""
        known = {part.file.path for part in self.listed()}
        found = segments(self._disk, self._directory.queue)
        return [segment for segment in found if segment.path not in known]

    def appended(self, placed: Sequence[Placed]) -> None:
        """Take in items that this process has appended, durably."""
        with self._state:
            for segment, _, offsets in placed:
                writer = segment.writer
                part = self._parts.get(writer.header.uuid)
                if part is None:
                    part = Part(writer.file, writer.header, writer.synced, segment=segment)
                    self._parts[part.uuid] = part
                part.live += len(offsets)
                part.end = writer.synced

    def sealed(self, segment: OpenSegment) -> None:
        """Take note that this process has finished a segment; its file stays open here."""
        with self._state:
            part = self._parts.get(segment.writer.header.uuid)
            if part is not None:
                part.segment = None
                return
        # Nothing was ever appended to it: it is found sealed, and collected.
        segment.writer.close()

    def take_up(self, segment: SegmentFile, walked: Mapping[bytes, Scan]) -> int:
        """Take up a segment that stands in the folder; return how many items wait there.

        `walked` is what recovery has found of those that it made whole.
        """
        try:
            file = File(self._disk, segment.path, write=True)
        except FileNotFoundError:
            return 0
        header, _ = read_header(file)
        if header is None or header.uuid in self._parts:
            # Damaged, or a copy of another: it is put aside at the next start.
            file.close()
            return 0
        if seal_of(file, header) is None:
            part = Part(file, header, HEADER_SIZE, followed=True)
        else:
            part = Part.of(file, walked.get(header.uuid) or scan(file, header))
        part.aside = self._unwanted(part, HEADER_SIZE, part.live)
        with self._state:
            self._parts[header.uuid] = part
        return part.live

    def follow(self, part: Part) -> int:
        """Take in what another process has appended to a part; return how many items that is."""
        # Asked first: what stands there when the writer is gone is all there will ever be.
        abandoned = refusing(part.file.path, self._disk.lock, part.file.fd, exclusive=True)
        items, end = part.follow()
        if abandoned and part.followed:
            self.findings += mend(self._directory, part.file, part.header)
            items, end = part.follow(mended=True)
        if abandoned:
            refusing(part.file.path, self._disk.lock, part.file.fd, exclusive=False)
        with self._state:
            start, part.end = part.end, end
            part.live += items
            part.aside += self._unwanted(part, start, items)
        return items

    def select(self, selection: Selection) -> None:
        """Count anew how many items nobody wants. The caller holds `state`."""
        self.selection = selection
        for part in self:
            part.aside = self._unwanted(part, HEADER_SIZE, part.live)

    def sync(self) -> None:
        """Make all markers durable. Raises `SyncFailed`."""
        with self._state:
            dirty = [part for part in self if part.dirty]
            for part in dirty:
                part.dirty = False
        for part in dirty:
            try:
                part.file.sync()
            except SyncFailed as error:
                self.failed = error
                raise
            with self._state:
                part.unmap()

    def collect(self) -> int:
        """Remove the segments in which everything is done; return how many."""
        done = [part for part in self.listed() if part.live == 0 and not part.growing]
        return sum(self._remove(part) for part in done)

    def drop(self, kept: Selection) -> int:
        """Remove the segments in which items wait, and none that is kept; return how many items went."""
        dropped = 0
        for part in self.listed():
            waiting = part.live
            if waiting and not part.growing and not part.count(kept):
                dropped += waiting if self._remove(part, waiting) else 0
        return dropped

    def close(self) -> None:
        """Close all files."""
        with self._state:
            while self._parts:
                self._parts.popitem()[1].close()

    def _unwanted(self, part: Part, start: int, items: int) -> int:
        return items - part.count(self.selection, start) if self.selection is not EVERYTHING else 0

    def _remove(self, part: Part, waiting: int = 0) -> bool:
        """Remove a segment in which no more than `waiting` items wait; False when it has to stay."""
        found = scan(part.file, part.header)
        new_damage = {gap.offset for gap in found.gaps if not gap.tail} - part.gaps
        if found.live > waiting or new_damage:
            return False
        if not refusing(part.file.path, self._disk.lock, part.file.fd, exclusive=True):
            return False
        # The records of these items were durable before their markers were set.
        remove_segment(self._disk, part.file)
        with self._state:
            del self._parts[part.uuid]
            part.close()
        return True
