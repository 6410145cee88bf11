"""A run's store as a whole: opened to work on, with recovery, or only to look at."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from fafo_build.project.declaration import Run
from fafo_run.log.directory import RunDirectory
from fafo_run.log.recovery import RecoveryReport, recover
from fafo_run.queue.queue import Queue
from fafo_run.queue.reader import QueueReader
from fafo_run.results.reader import ResultsReader
from fafo_run.results.results import Results
from fafo_run.run.check import look_at
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
        directory = RunDirectory.own(folder, force=settings.network_file_system)
        try:
            return cls.on(directory, settings, recover(directory))
        except BaseException:
            directory.close()
            raise

    @classmethod
    def open_existing(cls, folder: Path, settings: Run) -> RunStore:
        """Open a store as `open` does, but make none. Raises `StoreError` when none is there."""
        look_at(folder)
        return cls.open(folder, settings)

    @classmethod
    def on(cls, directory: RunDirectory, settings: Run, recovered: RecoveryReport | None = None) -> RunStore:
        """Open the two logs of a store that is owned and was recovered. Raises `StoreError`.

        What `recovered` says was walked isn't walked again.
        """
        segment = settings.segment
        results = Results(directory, segment_bytes=segment.size, idle=segment.idle)
        try:
            queue = Queue(
                directory,
                done=results.done,
                walked=recovered.queue if recovered else {},
                segment_bytes=segment.size,
                idle=segment.idle,
                lease=settings.lease,
            )
            retired = queue.settle()
            directory.mark_running()
        except BaseException:
            results.close()
            raise
        found = (recovered.findings if recovered else ()) + results.findings
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

    def engines(self, view: View) -> frozenset[str]:
        """Return which engines made the outcomes of the view's work, as far as the segments' ends say."""
        return frozenset(said.engine for said in self.results.provenances() if view.owner(said) is not None)

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

    def retries(self) -> dict[bytes, int]:
        """Return which items wait after `fafo retry` put them back, and how often it did.

        Those are left out whose outcome is there already.
        """
        found: dict[bytes, int] = {}
        if not self.results.summary().total.failed:
            return found
        for item in self.queue.items():
            if item.retry > found.get(item.identity, 0) and not self.results.is_done(
                item.identity, item.retry
            ):
                found[item.identity] = item.retry
        return found

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.results.close()


def reindex(folder: Path, settings: Run) -> int:
    """Delete the index of a store that nobody uses, build it from the segments, and return the number
    of records.

    Raises `StoreBusy`, `StoreError`.
    """
    store = RunStore.open_existing(folder, settings)
    try:
        store.results.reindex()
        total = store.results.summary().total
    finally:
        store.close(clean=True)
    return total.outputs + total.failed
