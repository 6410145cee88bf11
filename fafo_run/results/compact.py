"""Rewrites sealed segments without the records that are no longer wanted. Knows no project and no queue.

A segment is written anew beside the old one, sealed and durable, and then takes its name: that one rename is
all that happens to it. A crash leaves the old segment or the new one, never both: there is nothing to undo.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterator, Mapping

from attrs import evolve, frozen

from fafo_run.item import Failure, Provenance
from fafo_run.log.batch import Entry, Frames
from fafo_run.log.format import Kind, pack_header
from fafo_run.log.fs import Disk, File, refusing, sync_dir
from fafo_run.log.listing import remove_segment
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import Gap, scan, seal_of, walk
from fafo_run.log.segment import SegmentWriter
from fafo_run.results.files import RECORDS, ResultsFiles, ResultsSegment
from fafo_run.results.hint import SUFFIX
from fafo_run.results.index import Merged
from fafo_run.results.loading import opened
from fafo_run.results.place import Place
from fafo_run.results.summary import Group

_BATCH = 1000
_OF_THE_OLD = (Kind.SEAL, Kind.COMMIT)
"""Entries that speak of the file they stand in."""


@frozen
class Unwanted:
    """Which records may go. A failure that another record of its item supersedes always may."""

    failed: bool = False
    """Failures that count: their items will be done again."""
    work: Callable[[Provenance | Group], bool] = lambda _: False
    """Says of what a record was made with whether nobody stands for such work any more."""
    held: Container[bytes] = frozenset()
    """Identities that keep the record that counts: the queue has their items still, as done."""
    damaged: bool = False
    """Bytes that are no entry: quarantine/ has them already. Without it a damaged segment stays as it is."""

    def may_touch(self, merged: Merged) -> bool:
        """Return whether a segment can hold such records, by its sums."""
        if self.damaged or merged.lost.groups:
            return True
        groups = merged.tally.groups.items()
        return any((self.failed and counts.failed) or self.work(group) for group, counts in groups)


@frozen
class Compaction:
    """What was done, or would be."""

    rewritten: int
    """Segments that lost some of their records."""
    removed: int
    """Segments that lost all."""
    superseded: int
    """Records that went: failures whose item has another record that counts."""
    failed: int
    """Failures that counted."""
    obsolete: int
    """Records of work that nobody stands for."""
    mended: int
    """Segments that were rewritten without their damaged bytes."""
    bytes_before: int
    """Of all segments of results."""
    bytes_after: int
    damaged: tuple[str, ...]
    """Segments that were left as they are, since not all of them can be read."""


@frozen
class Cut:
    """What one segment is to lose."""

    sequence: int
    drop: frozenset[int]
    """Offsets."""
    kept: int
    """Records that stay."""
    bytes: int
    """Of the entries and the damage that go."""
    mended: bool
    """Whether it is damaged, and is written anew without that."""
    reasons: Mapping[str, int]


Find = Callable[[list[bytes]], Mapping[bytes, Place]]


def plan(
    files: ResultsFiles, merged: Mapping[bytes, Merged], find: Find, unwanted: Unwanted
) -> Iterator[Cut | str]:
    """Yield what each sealed segment is to lose, or the name of one that is damaged. Reads only."""
    touched = (of.sequence for of in merged.values() if unwanted.may_touch(of))
    # With damage behind its seal the index has none of it.
    for sequence in files.list() if unwanted.damaged else sorted(touched):
        with opened(files, sequence) as segment:
            if segment is not None:
                yield from _plan(segment, find, unwanted)


def _plan(segment: ResultsSegment, find: Find, unwanted: Unwanted) -> Iterator[Cut | str]:
    drop: dict[int, str] = {}
    records = gone = 0
    mended = False
    if unwanted.damaged:
        seen = scan(segment.file, segment.header)
        if seen.seal is None:
            return
        mended = bool(seen.damage or seen.odd_padding or seen.odd_markers)
    batch: list[Entry] = []

    def judge() -> None:
        nonlocal gone
        places = find([entry.identity for entry in batch])
        for entry in batch:
            reason = _reason(segment, entry, places.get(entry.identity), unwanted)
            if reason:
                drop[entry.offset] = reason
                gone += entry.end - entry.offset
        batch.clear()

    for found in walk(segment.file, segment.header):
        if isinstance(found, Gap):
            if not mended:
                yield segment.file.path.name
                return
            gone += found.length
        elif found.kind == Kind.PROVENANCE:
            segment.provenance.add(found)
        elif found.kind in RECORDS:
            records += 1
            batch.append(found)
            if len(batch) == _BATCH:
                judge()
    judge()
    if not mended and seal_of(segment.file, segment.header) is None:
        return
    if drop or mended:
        reasons = list(drop.values())
        counted = {reason: reasons.count(reason) for reason in set(reasons)}
        yield Cut(segment.sequence, frozenset(drop), records - len(drop), gone, mended, counted)


def _reason(segment: ResultsSegment, entry: Entry, place: Place | None, unwanted: Unwanted) -> str:
    try:
        record = segment.record(entry)
    except Undecodable:
        return ""
    counts = place is not None and (place.sequence, place.offset) == (segment.sequence, entry.offset)
    failure = isinstance(record.outcome, Failure)
    if not counts and failure and place is not None:
        return "superseded"
    # A second output of an identity is a fault that has to be seen: it stays.
    if not counts or entry.identity in unwanted.held:
        return ""
    if unwanted.work(record.provenance):
        return "obsolete"
    return "failed" if failure and unwanted.failed else ""


def report(files: ResultsFiles, planned: list[Cut | str]) -> Compaction:
    """Return what a plan comes to."""
    cuts = [cut for cut in planned if isinstance(cut, Cut)]
    sizes = {sequence: size for sequence, (_, size) in files.headers().items()}
    before = sum(sizes.values())
    saved = sum(cut.bytes if cut.kept else sizes.get(cut.sequence, 0) for cut in cuts)
    sums = {
        name: sum(cut.reasons.get(name, 0) for cut in cuts) for name in ("superseded", "failed", "obsolete")
    }
    return Compaction(
        rewritten=sum(1 for cut in cuts if cut.kept),
        removed=sum(1 for cut in cuts if not cut.kept),
        **sums,
        mended=sum(cut.mended for cut in cuts),
        bytes_before=before,
        bytes_after=before - saved,
        damaged=tuple(name for name in planned if isinstance(name, str)),
    )


def apply(disk: Disk, files: ResultsFiles, planned: list[Cut | str]) -> None:
    """Do what was planned. The caller owns the store, and has removed the index. Raises `StoreError`."""
    for cut in planned:
        if isinstance(cut, Cut):
            with opened(files, cut.sequence) as segment:
                if segment is None:
                    continue
                if cut.kept:
                    _rewrite(disk, segment, cut)
                else:
                    _remove(disk, segment)


def _rewrite(disk: Disk, segment: ResultsSegment, cut: Cut) -> None:
    # A uuid of its own: every checksum has it in it, so nothing of the old file passes for the new one's.
    header = evolve(segment.header, uuid=uuid.uuid4().bytes)
    path = segment.file.path
    file = File(disk, path.with_name(path.name + ".tmp"), write=True, create=True)
    try:
        file.write_at(0, pack_header(header))
        _copy(SegmentWriter(file, header), segment, cut)
        refusing(path, disk.rename, file.path, path)
    finally:
        file.close()
    sync_dir(disk, path.parent)


def _copy(writer: SegmentWriter, segment: ResultsSegment, cut: Cut) -> None:
    """Copy the entries that stay as they are; provenance keeps its numbers, and stands twice again."""
    provenance: dict[bytes, None] = {}
    batch: list[Entry] = []
    for found in walk(segment.file, segment.header):
        if not isinstance(found, Entry) or found.kind in _OF_THE_OLD or found.offset in cut.drop:
            continue
        if found.kind == Kind.PROVENANCE:
            if found.payload in provenance:
                continue
            provenance[found.payload] = None
        batch.append(found)
        if len(batch) == _BATCH:
            writer.stage(_frames(batch))
            writer.sync()
            writer.vouch()
            batch = []
    if batch:
        writer.stage(_frames(batch))
        writer.sync()
    writer.seal(list(provenance))


def _frames(entries: list[Entry]) -> Frames:
    _, _, words, identities, payloads = zip(*entries, strict=True)
    return Frames(words, identities, payloads)


def _remove(disk: Disk, segment: ResultsSegment) -> None:
    hint = segment.file.path.with_suffix(SUFFIX)
    if disk.is_file(hint):
        refusing(hint, disk.unlink, hint)
    file = File(disk, segment.file.path, write=True)
    try:
        remove_segment(disk, file)
    finally:
        file.close()
