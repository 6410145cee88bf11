"""A run's store as a whole: opened to work on, with recovery, or only to look at."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from fafo_build.project.declaration import Run
from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import recover
from fafo_run.queue.queue import Queue, retire_done
from fafo_run.queue.reader import QueueReader
from fafo_run.results.reader import ResultsReader
from fafo_run.results.results import Results
from fafo_run.run.view import View


@frozen
class RunStore:
    """A store that this process owns."""

    directory: RunDirectory
    queue: Queue
    results: Results
    recovered: tuple[str, ...]
    """What recovery found and did, a line each; empty after a clean stop."""

    @classmethod
    def open(cls, folder: Path, settings: Run) -> RunStore:
        """Lock the store, make it whole, open its two logs.

        Raises `StoreBusy` when another run has it, `StoreError` when it can't be used.
        """
        directory = RunDirectory.own(folder)
        try:
            report = recover(directory)
            segment = settings.segment
            queue = Queue(directory, segment_bytes=segment.size, idle=segment.idle, lease=settings.lease)
            try:
                results = Results(directory, segment_bytes=segment.size, idle=segment.idle)
                retired = retire_done(queue, results)
                directory.mark_running()
            except BaseException:
                queue.close(clean=False)
                raise
        except BaseException:
            directory.close()
            raise
        found = report.findings + results.findings
        if retired:
            found += (f"{retired} queued items had a record already; taken out of the queue",)
        return cls(directory, queue, results, found)

    def done(self, view: View) -> int:
        """Return how many outcomes the results hold of the view's classes as they are now."""
        names = {of.name for of in view.classes}
        return sum(
            counts.outputs + counts.failed
            for group, counts in self.results.summary().groups.items()
            if view.owner(group) in names
        )

    def close(self, *, clean: bool) -> None:
        """Close. `clean` seals and indexes, so that the next start has nothing to mend."""
        try:
            self.queue.close(clean=clean)
            self.results.close(clean=clean)
            if clean:
                self.directory.mark_stopped()
        finally:
            self.directory.close()


@frozen
class RunReader:
    """A store that another process may own: takes no lock that could stop it, writes nothing."""

    directory: RunDirectory
    queue: QueueReader
    results: ResultsReader

    @classmethod
    def open(cls, folder: Path) -> RunReader:
        """Open a store to look at. Raises `StoreError` when there is none."""
        directory = RunDirectory.look(folder)
        return cls(directory, QueueReader(directory), ResultsReader(directory))

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.results.close()


def reindex(folder: Path) -> int:
    """Delete the index of a store that nobody uses, build it from the segments, and return the number
    of records.

    Raises `StoreBusy`, `StoreError`.
    """
    store = RunStore.open(folder, Run())
    try:
        store.results.reindex()
        total = store.results.summary().total
    finally:
        store.close(clean=True)
    return total.outputs + total.failed
