"""What `fafo retry` does: puts items that failed back into the queue, beside a run or without one.

Their failures stay as history. An item that failed at the engine is queued as it was; one that failed before
is made anew of its row, by the producer's own code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field

from fafo_run.item import QueuedItem, Stage
from fafo_run.queue.writer import QueueWriter
from fafo_run.run import records, signals
from fafo_run.run.failures import Failed, Which
from fafo_run.run.intake import Intake
from fafo_run.run.making import Maker
from fafo_run.run.store import RunReader
from fafo_run.run.submit import appending
from fafo_run.run.view import View, items

_BATCH = 1_000


@define
class Retried:
    """What became of the failures that were chosen."""

    put_back: Counter[str] = field(factory=Counter)
    """By code: queued once more."""
    waiting: int = 0
    """They were put back before, and wait still."""
    superseded: int = 0
    """Their prompt, parameters or model aren't declared any more."""
    gone: int = 0
    """Their row isn't in its source any more, or has changed: then it is new work, and any run does it."""
    interrupted: bool = False
    """Whether others weren't looked at."""

    def as_json(self) -> dict[str, Any]:
        """Return what `fafo retry --json` prints."""
        return {
            "put_back": self.put_back.total(),
            "codes": dict(self.put_back),
            "waiting": self.waiting,
            "superseded": self.superseded,
            "gone": self.gone,
            "interrupted": self.interrupted,
        }


def retry(view: View, folder: Path, which: Which, *, dry_run: bool = False) -> Retried:
    """Queue the chosen failures anew; a dry run only says what it would do.

    `view` is of the whole project. Raises `SourceError` when a source that has to be read can't be, and
    `StoreError`.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(RunReader.open(folder))
        stopped = stack.enter_context(signals.noting())
        writer = None if dry_run else stack.enter_context(appending(folder, view.project.run))
        return _Retry(view, reader, writer, stopped).put_back(which)


class _Retry:
    def __init__(
        self, view: View, reader: RunReader, writer: QueueWriter | None, stopped: Callable[[], bool]
    ) -> None:
        self._view = view
        self._reader = reader
        self._writer = writer
        self._stopped = stopped
        self._classes = {of.name: of for of in view.classes}
        self._maker = Maker(view)
        self._waiting = reader.retries()
        self._told = Retried()
        self._from_rows: dict[bytes, int] = {}
        """What is to be made of its row, and how often it was put back before."""
        self._codes: dict[bytes, str] = {}
        """The failure codes of what isn't put back yet."""

    def put_back(self, which: Which) -> Retried:
        batch: list[QueuedItem] = []
        for failed in which.of(self._view, self._reader.results):
            if self._stopped():
                self._told.interrupted = True
                return self._told
            batch += self._as_it_was(failed)
            if len(batch) >= _BATCH:
                self._append(batch)
                batch = []
        self._append(batch)
        if self._from_rows:
            self._made_anew()
        return self._told

    def _append(self, batch: list[QueuedItem]) -> None:
        """Queue a batch, and count it; a dry run only counts."""
        if batch and self._writer is not None:
            self._writer.append(batch)
        self._told.put_back.update(self._codes.pop(item.identity) for item in batch)

    def _as_it_was(self, failed: Failed) -> Iterator[QueuedItem]:
        """Yield the entry of an item that failed at the engine; remember one that failed before."""
        record = failed.record
        if self._waiting.get(record.identity, 0) > record.retry:
            self._told.waiting += 1
        elif failed.owner is None:
            self._told.superseded += 1
        elif failed.failure.stage is not Stage.ENGINE:
            self._codes[record.identity] = failed.failure.code.value
            self._from_rows[record.identity] = record.retry
        else:
            self._codes[record.identity] = failed.failure.code.value
            shared = self._maker.provenance(self._classes[failed.owner], record.provenance.source)
            yield records.put_back(record, shared)

    def _made_anew(self) -> None:
        # What waits was sorted out above, by how often it was put back.
        intake = Intake(self._maker, self._reader.results, set, self._append, stopped=self._stopped)
        found = (item for item in items(self._view) if item.identity in self._from_rows)
        intake.take(found, retry=lambda item: self._from_rows[item.identity] + 1)
        self._told.interrupted = intake.taken.interrupted
        if not self._told.interrupted:
            self._told.gone = len(self._codes)
