"""Finds what is wrong with the segments of one folder, as actions that would mend it. It changes nothing.

What it yields is to be applied, or printed, before the next is asked for: each is found as the one before
leaves the folder. It trusts the segments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from attrs import frozen

from fafo_build.errors import Problem, StoreError
from fafo_run.log.actions import (
    Action,
    Cut,
    Keep,
    PutAside,
    Refuse,
    Remove,
    Seal,
    Sync,
    Tell,
    Why,
    WriteHeader,
)
from fafo_run.log.batch import Entry
from fafo_run.log.format import Header, SegmentKind
from fafo_run.log.fs import Disk, File, refusing
from fafo_run.log.listing import SegmentFile, segments, strays
from fafo_run.log.reader import Gap, OtherVersion, Scan, read_entry, read_header, scan, seal_of

_MOST_GAPS = 100
"""Of one segment that are kept apart; of more, all from the first to the last is kept in one piece."""

Visit = Callable[[SegmentFile, File, Header, Entry], None]
"""Sees every valid entry of the segments that are walked, but the seals."""


Walked = Callable[[SegmentFile, File, Scan], None]
"""Sees what the walk of a segment found."""


class Found(NamedTuple):
    """A segment with a readable header."""

    segment: SegmentFile
    header: Header


@frozen
class Survey:
    """How closely one folder of segments is looked at, and by whom."""

    disk: Disk
    folder: Path
    kind: SegmentKind
    clean: Callable[[], bool]
    """Says whether every segment has to be sealed: the last stop was clean, and no run works."""
    free: Callable[[File], bool]
    """Says of a segment that isn't sealed whether nobody writes it; another's is left alone."""
    thorough: bool = False
    """Whether sealed results are walked too; those of the queue always are."""
    visit: Visit | None = None
    walked: Walked | None = None
    """Told of each segment that was walked, before what it needs is done."""

    def actions(self) -> Iterator[Action]:
        """Yield what has to be done to the folder, in order. Raises `StoreError` when it can't be listed."""
        yield from self._leftovers()
        for name in strays(self.disk, self.folder):
            yield Tell(self.folder / name, Why.STRAY, "not the name of a segment; nothing reads it")
        found: list[Found] = []
        for segment in segments(self.disk, self.folder):
            yield from self._header(segment, found)
        originals = _originals(found)
        for segment, header in found:
            original = originals[header.uuid].segment
            if segment is not original:
                yield PutAside(segment.path, Why.COPY, f"a copy of {original.path.name}")
        last = {header.route: segment.sequence for segment, header in originals.values()}
        for one in sorted(originals.values(), key=lambda one: one.segment.sequence):
            yield from self._segment(one, follows=last[one.header.route] > one.segment.sequence)
        yield Sync(self.folder, Why.UNSYNCED, "names that a power cut may still take back")

    def _leftovers(self) -> Iterator[Action]:
        if not refusing(self.folder, self.disk.is_folder, self.folder):
            return
        for name in refusing(self.folder, self.disk.listdir, self.folder):
            path = self.folder / name
            if not name.endswith((".dead", ".tmp")) or not refusing(path, self.disk.is_file, path):
                continue
            if name.endswith(".dead"):
                yield Remove(path, Why.GIVEN_UP, "given up, and not quite removed")
            else:
                yield Remove(path, Why.NEVER_NAMED, "never got its name")

    def _header(self, segment: SegmentFile, found: list[Found]) -> Iterator[Action]:
        try:
            file = File(self.disk, segment.path)
        except FileNotFoundError:
            return  # Collected since the folder was listed.
        except StoreError as error:
            yield _refuse(segment, Why.UNREADABLE, error)
            return
        try:
            header, both = read_header(file)
            size = file.size()
        except OtherVersion as error:
            yield _refuse(segment, Why.VERSION, error)
            return
        except StoreError as error:
            yield _refuse(segment, Why.UNREADABLE, error)
            return
        finally:
            file.close()
        if header is None:
            yield PutAside(segment.path, Why.HEADER_LOST, f"no readable header in its {size} bytes")
            return
        if header.kind is not self.kind:
            message = f"a segment of the {header.kind.name.lower()} lies in {self.folder.name}/"
            cure = "move it back to where it came from"
            refusal = StoreError(Problem(message, file=str(segment.path), cure=cure))
            yield _refuse(segment, Why.MISPLACED, refusal)
            return
        if not both:
            yield WriteHeader(
                segment.path, Why.HEADER_HALF, "one copy of the header is damaged", header=header
            )
        found.append(Found(segment, header))

    def _segment(self, one: Found, *, follows: bool) -> Iterator[Action]:
        segment, header = one
        if header.sequence != segment.sequence:
            line = f"the header says it is number {header.sequence}"
            yield Tell(segment.path, Why.RENUMBERED, line)
        try:
            file = File(self.disk, segment.path)
        except FileNotFoundError:
            return
        try:
            now, _ = read_header(file)
            if now is not None and now.uuid != header.uuid:
                return  # Compacted since the folder was listed.
            torn, sealed = "", seal_of(file, header) is not None
            if not sealed:
                torn = "the last stop was clean" if self.clean() else torn
                torn = "a later segment follows it" if follows and not torn else torn
                # Again: a run that worked may have sealed it, and stopped, between the two questions.
                sealed = seal_of(file, header) is not None
            grows = not sealed and not self.free(file)
            if grows and (header.kind is SegmentKind.QUEUE or not torn):
                yield from self._growing(one, file)
                return
            if not sealed or self.thorough or header.kind is SegmentKind.QUEUE:
                yield from examine(segment.path, self._scan(one, file), torn)
            yield Sync(segment.path, Why.UNSYNCED, "bytes that a power cut may still take back")
        except StoreError as error:
            yield _refuse(segment, Why.UNREADABLE, error)
        finally:
            file.close()

    def _scan(self, one: Found, file: File) -> Scan:
        visit = self.visit
        see = None if visit is None else lambda entry: visit(one.segment, file, one.header, entry)
        seen = scan(file, one.header, see)
        if self.walked is not None:
            self.walked(one.segment, file, seen)
        return seen

    def _growing(self, one: Found, file: File) -> Iterator[Action]:
        """Look at a segment that another process writes, if everything is to be seen."""
        if self.visit is None:
            return
        for gap in self._scan(one, file).gaps:
            # A write that was refused is taken back and done again: only what stays is damage.
            if not gap.tail and read_entry(file, one.header, gap.offset) is None:
                yield _keep(one.segment.path, gap.offset, gap.length, gap.reason)


def examine(path: Path, seen: Scan, torn: str = "") -> Iterator[Action]:
    """Yield what a walked segment needs, so that every byte of it is kept and it is sealed.

    `torn` says why its seal should be there; empty when it need not. The results have one writer, and then
    it was there; each of the queue's many may have been killed before, whatever became of the others.
    """
    if seen.odd_markers:
        line = f"{seen.odd_markers} markers are damaged, their entries count as live"
        yield Tell(path, Why.ODD_MARKER, line)
    if seen.odd_padding:
        line = f"bytes between entries are damaged in {seen.odd_padding} places"
        yield Tell(path, Why.ODD_PADDING, line)
    yield from _gaps(path, [gap for gap in seen.gaps if seen.seal is not None or not gap.tail])
    if seen.seal is not None:
        if seen.damage and not seen.gaps:
            yield Tell(path, Why.CHANGED, f"sealed and damaged: {'; '.join(seen.damage)}")
        return
    left = max(seen.size - seen.end, 0)
    why, line = Why.UNSEALED, "not sealed"
    if torn and seen.header.kind is SegmentKind.RESULTS:
        why, line = Why.TORN, f"not sealed, though {torn}: its end is damaged or gone"
    elif torn:
        why, line = Why.ABANDONED, f"not sealed, though {torn}: its writer was killed, or its end is gone"
    if left:
        tail = f"{left} bytes at {seen.end}"
        cut = f"{line}; {tail}" if torn else f"an interrupted write of {tail}"
        yield Cut(path, why if torn else Why.INTERRUPTED, cut, offset=seen.end, length=left)
        why, line = Why.UNSEALED, "not sealed"
    yield Seal(path, why, line, scan=seen)


def _gaps(path: Path, gaps: list[Gap]) -> Iterator[Action]:
    if len(gaps) > _MOST_GAPS:
        start, stop = gaps[0].offset, gaps[-1].offset + gaps[-1].length
        yield _keep(path, start, stop - start, f"{len(gaps)} places in them")
        return
    for gap in gaps:
        yield _keep(path, gap.offset, gap.length, gap.reason)


def _keep(path: Path, offset: int, length: int, reason: str) -> Action:
    line = f"{length} bytes at {offset} are damaged ({reason})"
    return Keep(path, Why.GAP, line, offset=offset, length=length)


def _originals(found: list[Found]) -> dict[bytes, Found]:
    """Return one file of each segment: that whose name is its header's number, else the lowest."""
    originals: dict[bytes, Found] = {}
    for one in found:
        if one.header.uuid not in originals or one.header.sequence == one.segment.sequence:
            originals[one.header.uuid] = one
    return originals


def _refuse(segment: SegmentFile, why: Why, error: StoreError) -> Action:
    return Refuse(segment.path, why, error.problems[0].message, error=error)
