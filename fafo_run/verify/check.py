"""Makes the verification of a run: sums from the results, the view held against them, build/ against
its inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from fafo_build.bake.plan import plan_build
from fafo_build.project.declaration import Project
from fafo_run.results.reader import Duplicates
from fafo_run.run.store import RunReader
from fafo_run.run.view import View, items
from fafo_run.verify.report import Cause, Completeness, Finding, Hits, Report

IN_PROCESS = "in process"
"""Stands for the server where the engine is none."""


def verify(view: View, reader: RunReader, min_hit_rate: float) -> Report:
    """Return the verification of a run for the classes of the view. Reads only.

    Raises `SourceError` when a source can't be read, `StoreError` when the store can't.
    """
    by_class: dict[str, Hits] = {of.name: Hits() for of in view.classes}
    by_server: defaultdict[str, Hits] = defaultdict(Hits)
    failures = dict.fromkeys(by_class, 0)
    for group, counts in reader.results.summary().groups.items():
        owner = view.owner(group)
        if owner in by_class:
            hits = Hits(
                items=counts.outputs,
                prompt_tokens=counts.prompt_tokens,
                cached_tokens=counts.cached_tokens,
                ceiling_tokens=counts.expected_cached_tokens,
                reached_tokens=counts.credited_tokens,
            )
            by_class[owner] += hits
            failures[owner] += counts.failed
            by_server[group.server or IN_PROCESS] += hits
    # The audit first: what is recorded while it reads can only be missing from it, never doubled by it.
    audit = reader.results.duplicates()
    completeness = _completeness(view, reader, audit)
    stale = tuple(_stale(view.project))
    return Report(
        by_class=by_class,
        by_server={name: hits for name, hits in by_server.items() if hits.items},
        completeness=completeness,
        stale=stale,
        findings=tuple(_findings(by_class, completeness, audit, stale, failures, min_hit_rate)),
        min_hit_rate=min_hit_rate,
    )


def _completeness(view: View, reader: RunReader, audit: Duplicates) -> Completeness:
    """Hold every item of the view against the results. Takes 16 bytes of memory per item."""
    results = reader.results
    unrecorded = _unrecorded(reader)
    completed, failed, waiting = bytearray(), bytearray(), bytearray()
    lost = set()
    for item in items(view):
        if results.has_output(item.identity):
            completed += item.identity
        elif item.identity in results:
            failed += item.identity
        else:
            waiting += item.identity
            if item.identity in unrecorded:
                lost.add(item.identity)
    counts = [_distinct(found) for found in (completed, failed, waiting)]
    recorded = results.summary().total
    return Completeness(
        total=sum(counts),
        completed=counts[0],
        failed=counts[1],
        waiting=counts[2],
        superseded=recorded.superseded + max(0, recorded.outputs + recorded.failed - counts[0] - counts[1]),
        doubled=len(audit.identities),
        lost=len(lost),
        undecodable=len(audit.damaged),
    )


def _unrecorded(reader: RunReader) -> set[bytes]:
    """Return the identities of items that left the queue without a record."""
    suspects = {identity for identity in reader.queue.retired() if identity not in reader.results}
    if suspects:
        # A run may have recorded and retired them since the results were opened.
        with RunReader.open(reader.directory.path) as later:
            suspects -= {identity for identity in suspects if identity in later.results}
    return suspects


def _distinct(identities: bytearray) -> int:
    """Return how many different identities of 16 bytes there are: a row may stand twice in its source."""
    halves = np.frombuffer(identities, dtype=">u8").reshape(-1, 2)
    if not len(halves):
        return 0
    ordered = halves[np.lexsort((halves[:, 1], halves[:, 0]))]
    return 1 + int((ordered[1:] != ordered[:-1]).any(axis=1).sum())


def _stale(project: Project) -> Iterator[str]:
    plan = plan_build(project)
    for waiting in plan.waiting:
        yield from (f"{waiting.name}: {reason}" for reason in waiting.reasons)
    for name in plan.gone:
        yield f"{name}: the class is gone"


def _findings(
    by_class: Mapping[str, Hits],
    completeness: Completeness,
    audit: Duplicates,
    stale: tuple[str, ...],
    failures: Mapping[str, int],
    min_hit_rate: float,
) -> Iterator[Finding]:
    for name, hits in by_class.items():
        if hits.ratio is not None and hits.ratio < min_hit_rate:
            yield Finding(
                Cause.HIT_RATE,
                f"{name}: {hits.ratio:.3f} of the ceiling, {min_hit_rate:g} asked for "
                f"({hits.reached_tokens} of {hits.ceiling_tokens} tokens)",
            )
    if completeness.doubled:
        first = ", ".join(identity.hex() for identity in audit.identities[:3])
        yield Finding(Cause.DOUBLED, f"{completeness.doubled} identities have two outputs: {first}")
    if completeness.lost:
        yield Finding(Cause.LOST, f"{completeness.lost} items left the queue without a record")
    for line in audit.damaged:
        yield Finding(Cause.UNDECODABLE, line)
    for line in stale:
        yield Finding(Cause.STALE, line)
    for name, failed in failures.items():
        if failed and not by_class[name].items:
            yield Finding(Cause.NO_RESULTS, f"{name}: no output, {failed} failed")
    total = sum(by_class.values(), Hits())
    if not total.items and not any(failures.values()):
        yield Finding(Cause.NO_RESULTS, "no item has an output yet")
    elif total.items and not total.ceiling_tokens:
        yield Finding(Cause.NO_CEILING, "no prefix fills a page of the engine's cache")
