"""Checks every results entry on disk against every other, without the index and without a dict per record."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fafo_run.log.format import Kind
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import Entry, scan
from fafo_run.results.files import RECORDS, ResultsSegment


def audit(
    segments: Iterable[ResultsSegment],
) -> tuple[tuple[bytes, ...], int, int, int, tuple[str, ...]]:
    """Return identities with two outputs, outputs, failures, undecodable entries, and lines on damage."""
    outputs = bytearray()
    failures = undecodable = 0
    damaged: list[str] = []
    for segment in segments:
        broken: list[int] = []

        def visit(entry: Entry, segment: ResultsSegment = segment, broken: list[int] = broken) -> None:
            nonlocal failures
            if entry.kind == Kind.PROVENANCE:
                segment.provenance.add(entry)
            if entry.kind not in RECORDS:
                return
            if entry.kind == Kind.OUTPUT:
                outputs.extend(entry.identity)
            else:
                failures += 1
            try:
                segment.record(entry)
            except Undecodable:
                broken.append(entry.offset)

        found = scan(segment.file, segment.header, visit)
        undecodable += len(broken)
        name = segment.file.path.name
        damaged += [f"{name}: the entry at {offset} can't be decoded" for offset in broken]
        damaged += [f"{name}: {line}" for line in found.damage]
        if found.seal is None:
            # The tail of a segment that grows may be a write in progress.
            damaged += [
                f"{name}: {gap.length} bytes at {gap.offset}: {gap.reason}"
                for gap in found.gaps
                if not gap.tail
            ]
    return _repeated(outputs), len(outputs) // 16, failures, undecodable, tuple(damaged)


def _repeated(identities: bytearray) -> tuple[bytes, ...]:
    """Return the 16-byte identities that stand more than once, sorted."""
    halves = np.frombuffer(identities, dtype=">u8").reshape(-1, 2)
    ordered = halves[np.lexsort((halves[:, 1], halves[:, 0]))]
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    return tuple(sorted({row.tobytes() for row in ordered[1:][same]}))
