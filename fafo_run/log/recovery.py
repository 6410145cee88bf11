"""Makes a run's segments whole again after a crash: steps 1 to 5 of docs/format.md.

It trusts the segments alone, can be killed at any point and run again, and never loses a byte that may be an
entry: what it takes out of the way lies in quarantine/.
Step 7 is `queue.retire_done`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from attrs import field, frozen, mutable

from fafo_build.errors import Problem, StoreError
from fafo_run.log.appender import Route
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import NO_IDENTITY, Header, Kind, SegmentKind, pack_header
from fafo_run.log.fs import File, refusing, sync_dir
from fafo_run.log.listing import SegmentFile, segments, strays
from fafo_run.log.quarantine import keep_bytes, put_aside
from fafo_run.log.reader import Scan, read_header, scan, seal_of
from fafo_run.log.segment import Frame, SegmentWriter

_NUMBER = re.compile(r"[0-9]{8,10}")


@frozen
class RecoveryReport:
    """What recovery found and did."""

    segments: int
    """Looked at."""
    sealed: int
    """Found unsealed, made whole and sealed."""
    entries: int
    """Valid entries in the segments that were walked."""
    dropped_bytes: int
    """Cut from the tails of unsealed segments: interrupted writes. Those of results are kept."""
    torn: int
    """Segments that had been sealed and weren't any more: their end was lost or damaged."""
    quarantined: int
    """Gaps, cut ends and files put aside, now or by an earlier recovery."""
    odd_markers: int
    """Markers that are neither LIVE nor RETIRED; read as LIVE."""
    findings: tuple[str, ...]
    """One line for people per thing that was found."""

    @property
    def damaged(self) -> bool:
        """True when something was found that a mere interruption doesn't explain."""
        return bool(self.torn or self.quarantined or self.odd_markers)


@mutable
class _Notes:
    segments: int = 0
    sealed: int = 0
    entries: int = 0
    dropped_bytes: int = 0
    torn: int = 0
    quarantined: int = 0
    odd_markers: int = 0
    findings: list[str] = field(factory=list)


class _Found(NamedTuple):
    """A segment with a readable header."""

    segment: SegmentFile
    header: Header
    torn: str
    """Why it can't be that its seal was never written; empty when it can."""

    @property
    def where(self) -> str:
        """Its name, for people."""
        return f"{self.segment.path.parent.name}/{self.segment.path.name}"


def recover(directory: RunDirectory, *, thorough: bool = False) -> RecoveryReport:
    """Make every segment of a run readable and sealed, durably. The caller holds the lock.

    Sealed segments of the queue are walked; sealed results are only looked at unless `thorough`, since their
    entries are checked whenever they are read. Raises `StoreError` (`DiskFull`, `SyncFailed`) when the disk
    refuses, or for a segment of another format version.
    """
    if directory.lock is None:
        raise ValueError("recovery needs the store's lock")
    notes = _Notes()
    clean = directory.stopped_cleanly()
    for folder, kind in ((directory.queue, SegmentKind.QUEUE), (directory.results, SegmentKind.RESULTS)):
        _finish_removals(directory, folder)
        for name in strays(directory.disk, folder):
            notes.findings.append(f"{folder.name}/{name}: not the name of a segment; nothing reads it")
        walked = thorough or kind is SegmentKind.QUEUE
        for found in _judged(
            _without_copies(directory, _headers(directory, folder, kind, notes), notes), clean
        ):
            _recover_segment(directory, found, walked, notes)
        sync_dir(directory.disk, folder)
    sync_dir(directory.disk, directory.path)
    return RecoveryReport(
        notes.segments, notes.sealed, notes.entries, notes.dropped_bytes, notes.torn, notes.quarantined,
        notes.odd_markers, tuple(notes.findings),
    )  # fmt: skip


def _finish_removals(directory: RunDirectory, folder: Path) -> None:
    """Remove what a collector had already given up (.dead) and headers that never got a name (.tmp)."""
    for name in refusing(folder, directory.disk.listdir, folder):
        path = folder / name
        if name.endswith((".dead", ".tmp")) and directory.disk.is_file(path):
            refusing(path, directory.disk.unlink, path)


def _headers(
    directory: RunDirectory, folder: Path, kind: SegmentKind, notes: _Notes
) -> list[tuple[SegmentFile, Header]]:
    """Return the segments with their headers; a file without one is put aside, a lost copy written anew."""
    found: list[tuple[SegmentFile, Header]] = []
    for segment in segments(directory.disk, folder):
        notes.segments += 1
        where = f"{folder.name}/{segment.path.name}"
        file = File(directory.disk, segment.path, write=True)
        try:
            header, both = read_header(file)
            if header is None:
                _quarantine(directory, segment.path, f"no readable header in its {file.size()} bytes", notes)
                continue
            if header.kind is not kind:
                cure = "move it back to where it came from"
                message = f"a segment of the {header.kind.name.lower()} lies in {folder.name}/"
                raise StoreError(Problem(message, file=str(segment.path), cure=cure))
            if not both:
                file.write_at(0, pack_header(header))
                file.sync()
                notes.findings.append(f"{where}: one copy of the header was damaged; written anew")
            found.append((segment, header))
        finally:
            file.close()
    return found


def _quarantine(directory: RunDirectory, path: Path, reason: str, notes: _Notes) -> None:
    line = f"{path.parent.name}/{path.name}: {reason}; moved to quarantine/"
    put_aside(directory, path, line)
    notes.quarantined += 1
    notes.findings.append(line)


def _without_copies(
    directory: RunDirectory, found: list[tuple[SegmentFile, Header]], notes: _Notes
) -> list[tuple[SegmentFile, Header]]:
    """Put every second file of one segment aside, and return the others.

    The one that has the name it was written under stays, else the one with the lowest number.
    """
    best: dict[bytes, SegmentFile] = {}
    for segment, header in found:
        if header.uuid not in best or header.sequence == segment.sequence:
            best[header.uuid] = segment
    kept: list[tuple[SegmentFile, Header]] = []
    for segment, header in found:
        original = best[header.uuid]
        if original is segment:
            kept.append((segment, header))
        else:
            _quarantine(directory, segment.path, f"a copy of {original.path.name}", notes)
    return kept


def _judged(found: list[tuple[SegmentFile, Header]], clean: bool) -> list[_Found]:
    """Say of each segment why it must have been sealed once, if it must."""
    last = {_route(header): segment.sequence for segment, header in found}
    judged: list[_Found] = []
    for segment, header in found:
        torn = "the last stop was clean" if clean else ""
        if last[_route(header)] > segment.sequence:
            torn = torn or "a later segment follows it"
        judged.append(_Found(segment, header, torn))
    return judged


def _route(header: Header) -> Route:
    return Route(header.model_fingerprint, header.artifact, header.lane)


def _recover_segment(directory: RunDirectory, found: _Found, walked: bool, notes: _Notes) -> None:
    file = File(directory.disk, found.segment.path, write=True)
    try:
        if found.header.sequence != found.segment.sequence:
            notes.findings.append(f"{found.where}: the header says it is number {found.header.sequence}")
        if walked or seal_of(file, found.header) is None:
            _mend(directory, file, scan(file, found.header), found, notes)
        file.sync()
    finally:
        file.close()


def _mend(directory: RunDirectory, file: File, seen: Scan, found: _Found, notes: _Notes) -> None:
    where = found.where
    notes.entries += seen.count
    notes.odd_markers += seen.odd_markers
    if seen.odd_markers:
        notes.findings.append(f"{where}: {seen.odd_markers} markers are damaged, their entries count as live")
    if seen.odd_padding:
        notes.findings.append(f"{where}: bytes between entries are damaged in {seen.odd_padding} places")
    for gap in seen.gaps:
        if seen.seal is not None or not gap.tail:
            line = f"{gap.length} bytes at {gap.offset} are damaged ({gap.reason}); what follows is kept"
            _keep(directory, file, gap.offset, gap.length, f"{where}: {line}", notes)
    if seen.seal is not None:
        whole = seen.gaps or not seen.damage
        notes.findings += [] if whole else [f"{where}: sealed and damaged: {'; '.join(seen.damage)}"]
        return
    _cut(directory, file, seen, found, notes)
    _seal(file, seen)
    notes.sealed += 1


def _cut(directory: RunDirectory, file: File, seen: Scan, found: _Found, notes: _Notes) -> None:
    """Cut what stands behind the last entry of a segment that isn't sealed."""
    left = max(seen.size - seen.end, 0)
    if found.torn:
        notes.torn += 1
        line = f"{found.where}: not sealed, though {found.torn}: its end is damaged or gone"
        if left:
            line += f"; {left} bytes were cut at {seen.end} and are kept in quarantine/"
            _keep(directory, file, seen.end, left, line, notes)
        else:
            notes.findings.append(line)
    elif left:
        notes.dropped_bytes += left
        line = f"{found.where}: an interrupted write of {left} bytes was cut at {seen.end}"
        notes.findings.append(line)
        if found.header.kind is SegmentKind.RESULTS:
            # Only the index knows whether it was sealed after all, and nobody has read that yet.
            keep_bytes(directory, file.path, seen.end, file.read_at(seen.end, left), line)
    if left:
        file.truncate(seen.end)
        file.sync()


def _seal(file: File, found: Scan) -> None:
    """Seal a segment whose file ends at `found.end`."""
    file.sync()
    # As at a seal by its writer, provenance stands twice; what a crash left behind isn't repeated again.
    times = Counter(entry.payload for entry in found.provenance)
    once = [Frame(Kind.PROVENANCE, NO_IDENTITY, payload) for payload, count in times.items() if count == 1]
    SegmentWriter(file, found.header, found.end, found.count, found.hasher).seal(once)


def _keep(directory: RunDirectory, file: File, offset: int, length: int, line: str, notes: _Notes) -> None:
    """Copy bytes to quarantine/; a gap stays in its segment too, so this may be done again."""
    keep_bytes(directory, file.path, offset, file.read_at(offset, length), line)
    notes.quarantined += 1
    notes.findings.append(line)


def next_sequence(directory: RunDirectory, folder: Path) -> int:
    """Return a number that no segment of the folder has, nor had before it was put aside."""
    known = [segment.sequence for segment in segments(directory.disk, folder)]
    prefix = folder.name + "-"
    for name in refusing(directory.quarantine, directory.disk.listdir, directory.quarantine):
        number = _NUMBER.match(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if number is not None:
            known.append(int(number[0]))
    return max(known, default=0) + 1
