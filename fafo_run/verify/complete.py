"""Holds every item of a view against the results and the queue: each has one outcome, or waits."""

from __future__ import annotations

import numpy as np

from fafo_run.results.audit import Duplicates
from fafo_run.run.store import RunReader
from fafo_run.run.view import View, items
from fafo_run.verify.sums import Completeness

_LOOKS = 2
"""How often to look whether an item waits: one that is tried again gets a new entry before the old one
retires, and may do so while both segments are read.
"""


def complete(view: View, reader: RunReader, audit: Duplicates) -> Completeness:
    """Return what became of every item of the view, and what else there is; `audit` is of all records.

    Takes 16 bytes of memory per item. Raises `SourceError`, and `StoreError`.
    """
    results = reader.results
    unrecorded, retries = _unrecorded(reader), reader.retries()
    completed, failed, waiting, retried = bytearray(), bytearray(), bytearray(), bytearray()
    lost = set()
    for item in items(view):
        name = item.identity
        if results.has_output(name):
            completed += name
            continue
        if name in unrecorded:
            lost.add(name)
        if name not in results:
            waiting += name
        elif name in retries:
            retried += name
        else:
            failed += name
    counts = [_distinct(found) for found in (completed, failed, waiting, retried)]
    recorded = results.summary().total
    counted = counts[0] + counts[1] + counts[3]
    return Completeness(
        total=sum(counts),
        completed=counts[0],
        failed=counts[1],
        waiting=counts[2] + counts[3],
        superseded=max(0, recorded.outputs + recorded.failed - counted),
        doubled=len(audit.identities),
        lost=len(lost),
        undecodable=len(audit.damaged),
    )


def _unrecorded(reader: RunReader) -> set[bytes]:
    """Return the identities of items that left the queue without an outcome."""
    suspects = dict(reader.queue.unrecorded(reader.results))
    for _ in range(_LOOKS):
        if suspects:
            waiting = reader.queue.identities()
            suspects = {name: retry for name, retry in suspects.items() if name not in waiting}
    if suspects:
        # A run may have recorded and retired them since the results were opened.
        with RunReader.open(reader.directory.path) as later:
            done = later.results.is_done
            suspects = {name: retry for name, retry in suspects.items() if not done(name, retry)}
    return set(suspects)


def _distinct(identities: bytearray) -> int:
    """Return how many different identities of 16 bytes there are: a row may stand twice in its source."""
    halves = np.frombuffer(identities, dtype=">u8").reshape(-1, 2)
    if not len(halves):
        return 0
    ordered = halves[np.lexsort((halves[:, 1], halves[:, 0]))]
    return 1 + int((ordered[1:] != ordered[:-1]).any(axis=1).sum())
