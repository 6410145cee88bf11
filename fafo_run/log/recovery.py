"""Makes a run's segments whole again after a crash: steps 1 to 5 of docs/format.md.

It trusts the segments alone, can be killed at any point and run again, and never loses a byte that may be an
entry: what it takes out of the way lies in quarantine/ with the reason beside it.
Step 7 is `queue.retire_done`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from attrs import field, frozen, mutable

from fafo_build.errors import Problem, StoreError
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import NO_IDENTITY, Header, Kind, SegmentKind
from fafo_run.log.fs import File, read_file, refusing, replace_file, sync_dir
from fafo_run.log.listing import SegmentFile, segments
from fafo_run.log.reader import Gap, Scan, read_header, scan, seal_of
from fafo_run.log.segment import Frame, SegmentWriter


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
    """Cut from the tails of unsealed segments: interrupted writes, acknowledged to nobody."""
    quarantined: int
    """Gaps and files put aside, now or by an earlier recovery."""
    odd_markers: int
    """Markers that are neither LIVE nor RETIRED; read as LIVE."""
    findings: tuple[str, ...]
    """One line for people per thing that was found."""

    @property
    def damaged(self) -> bool:
        """True when something was found that a mere interruption doesn't explain."""
        return bool(self.quarantined or self.odd_markers)


@mutable
class _Notes:
    segments: int = 0
    sealed: int = 0
    entries: int = 0
    dropped_bytes: int = 0
    quarantined: int = 0
    odd_markers: int = 0
    findings: list[str] = field(factory=list)


def recover(directory: RunDirectory, *, thorough: bool = False) -> RecoveryReport:
    """Make every segment of a run readable and sealed, durably. The caller holds the lock.

    Sealed segments of the queue are walked; sealed results are only looked at unless `thorough`, since their
    entries are checked whenever they are read. Raises `StoreError` (`DiskFull`, `SyncFailed`) when the disk
    refuses, or for a segment of another format version.
    """
    if directory.lock is None:
        raise ValueError("recovery needs the store's lock")
    notes = _Notes()
    for folder, kind in ((directory.queue, SegmentKind.QUEUE), (directory.results, SegmentKind.RESULTS)):
        _finish_removals(directory, folder)
        uuids: dict[bytes, Path] = {}
        for segment in segments(directory.disk, folder):
            notes.segments += 1
            walked = thorough or kind is SegmentKind.QUEUE
            header = _recover_segment(directory, segment, kind, walked, notes)
            if header is not None and uuids.setdefault(header.uuid, segment.path) != segment.path:
                notes.findings.append(f"{segment.path.name} is a copy of {uuids[header.uuid].name}")
        sync_dir(directory.disk, folder)
    sync_dir(directory.disk, directory.path)
    return RecoveryReport(
        notes.segments, notes.sealed, notes.entries, notes.dropped_bytes, notes.quarantined,
        notes.odd_markers, tuple(notes.findings),
    )  # fmt: skip


def _finish_removals(directory: RunDirectory, folder: Path) -> None:
    """Remove what a collector had already given up (.dead) and headers that never got a name (.tmp)."""
    for name in directory.disk.listdir(folder):
        if name.endswith((".dead", ".tmp")):
            path = folder / name
            refusing(path, directory.disk.unlink, path)


def _recover_segment(
    directory: RunDirectory, segment: SegmentFile, kind: SegmentKind, walked: bool, notes: _Notes
) -> Header | None:
    file = File(directory.disk, segment.path, write=True)
    try:
        header, both = read_header(file)
        if header is None:
            _put_aside(directory, file, notes)
            return None
        if header.kind is not kind:
            cure = "move it back to where it came from"
            message = f"a segment of the {header.kind.name.lower()} lies in {segment.path.parent.name}/"
            raise StoreError(Problem(message, file=str(segment.path), cure=cure))
        where = f"{segment.path.parent.name}/{segment.path.name}"
        if not both:
            notes.findings.append(f"{where}: one copy of the header is damaged, the other is used")
        if header.sequence != segment.sequence:
            notes.findings.append(f"{where}: the header says it is number {header.sequence}")
        if walked or seal_of(file, header) is None:
            _mend(directory, file, scan(file, header), where, notes)
        file.sync()
        return header
    finally:
        file.close()


def _mend(directory: RunDirectory, file: File, found: Scan, where: str, notes: _Notes) -> None:
    notes.entries += found.count
    notes.odd_markers += found.odd_markers
    if found.odd_markers:
        notes.findings.append(
            f"{where}: {found.odd_markers} markers are damaged, their entries count as live"
        )
    if found.odd_padding:
        notes.findings.append(f"{where}: bytes between entries are damaged in {found.odd_padding} places")
    for gap in found.gaps:
        if found.seal is not None or not gap.tail:
            _keep_gap(directory, file, gap, where, notes)
    if found.seal is not None:
        whole = found.gaps or not found.damage
        notes.findings += [] if whole else [f"{where}: sealed and damaged: {'; '.join(found.damage)}"]
        return
    if found.size > found.end:
        file.truncate(found.end)
        file.sync()
        notes.dropped_bytes += found.size - found.end
        dropped = found.size - found.end
        notes.findings.append(f"{where}: an interrupted write of {dropped} bytes was cut at {found.end}")
    _seal(file, found)
    notes.sealed += 1


def _seal(file: File, found: Scan) -> None:
    """Seal a segment whose file ends at `found.end`."""
    file.sync()
    # As at a seal by its writer, provenance stands twice; what a crash left behind isn't repeated again.
    times = Counter(entry.payload for entry in found.provenance)
    once = [Frame(Kind.PROVENANCE, NO_IDENTITY, payload) for payload, count in times.items() if count == 1]
    SegmentWriter(file, found.header, found.end, found.count, found.hasher).seal(once)


def _keep_gap(directory: RunDirectory, file: File, gap: Gap, where: str, notes: _Notes) -> None:
    """Copy a gap's bytes to quarantine/; the segment keeps them too, so this may be done again."""
    line = f"{where}: {gap.length} bytes at {gap.offset} are damaged ({gap.reason}); what follows is kept"
    name = where.replace("/", "-").removesuffix(".seg") + f"-{gap.offset}-{gap.length}.bin"
    path = directory.quarantine / name
    data = file.read_at(gap.offset, gap.length)
    if read_file(directory.disk, path) != data:
        replace_file(directory.disk, path.with_suffix(".reason"), line.encode() + b"\n")
        replace_file(directory.disk, path, data)
    notes.quarantined += 1
    notes.findings.append(line)


def _put_aside(directory: RunDirectory, file: File, notes: _Notes) -> None:
    """Move a file without a readable header to quarantine/."""
    folder, name, size = file.path.parent.name, file.path.name, file.size()
    line = f"{folder}/{name}: no readable header in its {size} bytes; moved to quarantine/"
    path = directory.quarantine / f"{folder}-{name}"
    number = 1
    while directory.disk.inode(path) is not None:
        number += 1
        path = directory.quarantine / f"{folder}-{name}-{number}"
    file.sync()
    replace_file(directory.disk, path.with_name(path.name + ".reason"), line.encode() + b"\n")
    refusing(path, directory.disk.rename, file.path, path)
    sync_dir(directory.disk, directory.quarantine)
    sync_dir(directory.disk, file.path.parent)
    notes.quarantined += 1
    notes.findings.append(line)


def next_sequence(directory: RunDirectory, folder: Path) -> int:
    """Return a number that no segment of the folder has, nor had before it was put aside."""
    disk = directory.disk
    known = [segment.sequence for segment in segments(disk, folder)]
    prefix = folder.name + "-"
    for name in disk.listdir(directory.quarantine):
        digits = name.removeprefix(prefix)[:8]
        if name.startswith(prefix) and digits.isdigit():
            known.append(int(digits))
    return max(known, default=0) + 1
