"""What `fafo submit` does: the producer alone, in a process of its own, beside a run or without one.

It starts no engine and takes no lock. The run finds what is queued, and looks at the engine's own limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fafo_build.project.declaration import Run
from fafo_run.item import QueuedItem
from fafo_run.log.directory import RunDirectory
from fafo_run.queue.writer import QueueWriter
from fafo_run.run import signals
from fafo_run.run.intake import Intake, Taken
from fafo_run.run.making import Maker
from fafo_run.run.store import RunReader
from fafo_run.run.totals import count, distinct
from fafo_run.run.view import View


@contextmanager
def appending(folder: Path, settings: Run) -> Iterator[QueueWriter]:
    """Open the queue of a run to append to it, and make the run's folder when it isn't there.

    Raises `StoreError`.
    """
    directory = RunDirectory.join(folder, force=settings.network_file_system)
    writer = QueueWriter(directory, segment_bytes=settings.segment.size, idle=settings.segment.idle)
    try:
        yield writer
    finally:
        writer.close()


def submit(view: View, folder: Path, progress: Callable[[Taken], None]) -> Taken:
    """Queue every item of the view that is neither done nor waiting; tell `progress` now and then.

    What was appended stays when it is interrupted. Raises `SourceError` as a run does, before anything is
    queued, and `StoreError`.
    """
    with appending(folder, view.project.run) as writer:
        with signals.terminating():
            totals = count(view, folder)
        with RunReader.open(folder) as reader, signals.noting() as stopped:

            def append(batch: list[QueuedItem]) -> None:
                writer.append(batch)
                progress(intake.taken)

            intake = Intake(Maker(view), reader.results, reader.queue.identities, append, stopped=stopped)
            intake.take(distinct(view, totals))
    return intake.taken
