"""What follows from the segments and is not as they say: the index, items that wait though they are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from attrs import frozen

from fafo_run.log.actions import Action, Tell, Why
from fafo_run.log.directory import RunDirectory
from fafo_run.results.index import changed
from fafo_run.results.reader import ResultsReader


@frozen
class Reindex(Action):
    """Build the index from the segments, and their hints too."""

    do = "reindex"
    done = "built from the segments"

    def apply(self, directory: RunDirectory) -> None:
        """Nothing by itself: whoever opens the results to write does it."""


@frozen
class Retire(Action):
    """Take items out of the queue that have a record."""

    do = "retire"
    done = "taken out of the queue"

    def apply(self, directory: RunDirectory) -> None:
        """Nothing by itself: it takes the queue and the results, both open to write."""


def derived(
    directory: RunDirectory, results: ResultsReader, sizes: Mapping[bytes, int], done: int
) -> Iterator[Action]:
    """Yield what recovery does after the segments are whole.

    `sizes` is that of each segment in bytes, by uuid; `done` says how many items wait that have a record.
    """
    vanished = list(changed(results.indexed, sizes))
    if vanished:
        # A run that works may have compacted them since the index was read.
        with closing(ResultsReader(directory)) as later:
            vanished = [line for line in changed(later.indexed, sizes) if line in vanished]
    for line in vanished:
        name, _, found = line.partition(": ")
        yield Tell(directory.results / name, Why.VANISHED, found)
    total = results.summary().total
    if not results.is_indexed and (total.outputs + total.failed or results.indexed):
        line = "absent, damaged, of other segments, or left by a machine that went down"
        yield Reindex(directory.index, Why.INDEX_LOST, line)
    if done:
        yield Retire(directory.queue, Why.DONE, f"{done} queued items have a record already")
