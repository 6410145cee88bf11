"""Checks every results entry on disk against every other, without a dict per record.

Of the index it takes only which segments it had, and how large: what isn't there can't be found on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from attrs import Factory, define, frozen

from fafo_run.item import Record
from fafo_run.log.batch import Entry
from fafo_run.log.format import Header, Kind
from fafo_run.log.listing import segment_name
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import Scan, read_header, scan, seal_of
from fafo_run.log.route import Route
from fafo_run.results.files import RECORDS, ResultsFiles, ResultsSegment
from fafo_run.results.index import Merged, changed


@frozen
class Duplicates:
    """What a check of all entries on disk found, without the index."""

    identities: tuple[bytes, ...]
    """Those with more than one output, sorted."""
    outputs: int
    """OUTPUT entries."""
    failures: int
    """FAILURE entries."""
    undecodable: int
    """Entries whose checksum holds and which can't be read all the same."""
    damaged: tuple[str, ...]
    """One line for people per piece of damage."""


@define
class _Sums:
    outputs: bytearray = Factory(bytearray)
    """The identities, 16 bytes each."""
    failures: int = 0
    undecodable: int = 0
    damaged: list[str] = Factory(list)


Watcher = Callable[[Record], None]


def audit(
    files: ResultsFiles,
    indexed: Mapping[bytes, Merged],
    is_idle: Callable[[], bool],
    watcher: Watcher | None = None,
) -> Duplicates:
    """Check every entry of every segment against every other.

    `indexed` is what the index had, by uuid; `is_idle` says that every segment has to be sealed. `watcher` is
    shown every record that can be read: it is decoded here anyway, and to read it again costs more than all
    else.
    """
    sums = _Sums()
    last: dict[Route, int] = {}
    sizes: dict[bytes, int] = {}
    names: dict[bytes, str] = {}
    unsealed: list[tuple[int, Header]] = []
    for sequence in files.list():
        segment = files.fresh(sequence)
        if segment is None:
            sums.damaged.append(f"{segment_name(sequence)}: no readable header")
            continue
        header = segment.header
        try:
            found = _check(segment, sums, watcher)
        finally:
            segment.file.close()
        if found.seal is None:
            unsealed.append((sequence, header))
        if header.uuid in sizes:
            sums.damaged.append(f"{segment_name(sequence)}: a copy of {names[header.uuid]}")
        sizes.setdefault(header.uuid, found.size)
        names.setdefault(header.uuid, segment_name(sequence))
        last[header.route] = sequence
    sums.damaged += changed(indexed, sizes)
    sums.damaged += _torn(files, unsealed, last, indexed, is_idle)
    outputs = sums.outputs
    return Duplicates(
        identities=repeated(outputs),
        outputs=len(outputs) // 16,
        failures=sums.failures,
        undecodable=sums.undecodable,
        damaged=tuple(sums.damaged),
    )


def _check(segment: ResultsSegment, sums: _Sums, watcher: Watcher | None) -> Scan:
    """Read a whole segment, add up what it holds, and return what the walk found."""
    broken: list[int] = []

    def visit(entry: Entry) -> None:
        if entry.kind == Kind.PROVENANCE:
            segment.provenance.add(entry)
        if entry.kind not in RECORDS:
            return
        if entry.kind == Kind.OUTPUT:
            sums.outputs.extend(entry.identity)
        else:
            sums.failures += 1
        try:
            record = segment.record(entry)
        except Undecodable:
            broken.append(entry.offset)
            return
        if watcher is not None:
            watcher(record)

    found = scan(segment.file, segment.header, visit)
    name = segment.file.path.name
    sums.undecodable += len(broken)
    if not read_header(segment.file)[1]:
        sums.damaged.append(f"{name}: one copy of the header is damaged")
    sums.damaged += [f"{name}: the entry at {offset} can't be decoded" for offset in broken]
    sums.damaged += [f"{name}: {line}" for line in found.damage]
    if found.seal is None:
        # The tail of a segment that grows may be a write in progress.
        sums.damaged += [
            f"{name}: {gap.length} bytes at {gap.offset}: {gap.reason}" for gap in found.gaps if not gap.tail
        ]
    return found


def _torn(
    files: ResultsFiles,
    unsealed: list[tuple[int, Header]],
    last: Mapping[Route, int],
    indexed: Mapping[bytes, Merged],
    is_idle: Callable[[], bool],
) -> Iterator[str]:
    """Yield a line for each segment that was sealed once and isn't now."""
    # Asked after the segments were listed: a run that starts later seals what it finds, and makes new ones.
    idle = is_idle()
    for sequence, header in unsealed:
        if header.uuid in indexed:
            why = "the index has it as sealed"
        elif last[header.route] > sequence:
            why = "a later segment follows it"
        elif idle:
            why = "the last stop was clean"
        else:
            continue
        if not _is_sealed_now(files, sequence):
            yield f"{segment_name(sequence)}: not sealed, though {why}: its end is damaged or gone"


def _is_sealed_now(files: ResultsFiles, sequence: int) -> bool:
    segment = files.fresh(sequence)
    if segment is None:
        return False
    try:
        return seal_of(segment.file, segment.header) is not None
    finally:
        segment.file.close()


def repeated(identities: bytearray) -> tuple[bytes, ...]:
    """Return the 16-byte identities that stand more than once, sorted."""
    halves = np.frombuffer(identities, dtype=">u8").reshape(-1, 2)
    ordered = halves[np.lexsort((halves[:, 1], halves[:, 0]))]
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    return tuple(sorted({row.tobytes() for row in ordered[1:][same]}))
