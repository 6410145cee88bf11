"""The producer: turns the view into queued items. It never waits for a result, only for room in the queue.

What can't become a prompt goes to the completer as a failure record, and the rows after it go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from fafo_run.identity import seed
from fafo_run.item import BrokenRow, Failure, FailureCode, Provenance, QueuedItem, Stage
from fafo_run.prompt import Prompt, PromptEncoder, PromptError
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run import records
from fafo_run.run.completer import Completer
from fafo_run.run.lane import lane_of
from fafo_run.run.state import RunState
from fafo_run.run.view import ClassView, View, ViewItem, items

_BATCH = 1_000
"""Items per append to the queue."""
_FLUSH = 1.0
"""Seconds after which a smaller batch is appended all the same, so that a slow source doesn't starve
an engine.
"""
_RECHECK_ONE_IN = 256
"""Of which items, besides the first of each class and source, the prompt is encoded a second time, whole."""


class Producer(threading.Thread):
    """Reads the view once and enqueues what is neither done nor waiting."""

    def __init__(
        self,
        view: View,
        encoders: Mapping[str, PromptEncoder],
        queue: Queue,
        results: Results,
        completer: Completer,
        state: RunState,
        context_length: int,
    ) -> None:
        super().__init__(name="fafo-producer")
        self._view = view
        self._encoders = encoders
        self._queue = queue
        self._results = results
        self._completer = completer
        self._state = state
        self._context_length = context_length
        self._pending = queue.identities()
        self._batch: list[QueuedItem] = []
        self._flushed = time.monotonic()
        self._shared: dict[tuple[str, str], Provenance] = {}
        self._stopping = threading.Event()
        self.fault: BaseException | None = None
        """What ended this role early; the queue still holds all that was appended."""

    def stop(self) -> None:
        """Ask it to end; what it has in hand is simply not enqueued, and found again by the next run."""
        self._stopping.set()

    def run(self) -> None:
        """Enqueue the view, then end."""
        try:
            for item in items(self._view):
                if self._stopping.is_set():
                    return
                self._consider(item)
                if len(self._batch) >= _BATCH or (self._batch and self._age() > _FLUSH):
                    self._append()
            self._append()
        except BaseException as error:  # noqa: BLE001 - not swallowed: the supervisor raises it
            self.fault = error

    def _age(self) -> float:
        return time.monotonic() - self._flushed

    def _consider(self, item: ViewItem) -> None:
        if item.identity in self._pending:
            return
        if item.identity in self._results:
            done = self._results.has_output(item.identity)
            self._state.found_done(item.of.name, failed=not done)
            return
        self._pending.add(item.identity)
        first = (item.of.name, item.row.source) not in self._shared
        shared = self._provenance(item.of, item.row.source)
        made = self._make(item, recheck=first or _sampled(item.identity))
        if isinstance(made, Prompt):
            self._batch.append(records.queued(item, shared, seed(item.identity), made, self._lane(made)))
        else:
            failure, prompt = made
            lane = self._lane(prompt) if prompt else 0
            early = records.failed_early(item, shared, seed(item.identity), failure, prompt, lane)
            self._wait_while(lambda: self._completer.backlog > Completer.BACKLOG)
            self._completer.record(early)

    def _lane(self, prompt: Prompt) -> int:
        return lane_of(prompt.prompt_tokens, self._view.project.run.lanes, self._context_length)

    def _provenance(self, of: ClassView, source: str) -> Provenance:
        found = self._shared.get((of.name, source))
        if found is None:
            found = self._shared[of.name, source] = records.provenance(of, source)
        return found

    def _make(self, item: ViewItem, *, recheck: bool) -> Prompt | tuple[Failure, Prompt | None]:
        """Return the item's prompt, or why it has none that could be sent."""
        row = item.row
        if isinstance(row, BrokenRow):
            return Failure(FailureCode.ROW_INVALID, Stage.SOURCE, f"{row.where}: {row.message}"), None
        encoder = self._encoders[item.of.name]
        try:
            prompt = encoder.encode(row.fields, row.source, row.key)
        except PromptError as error:
            return Failure(FailureCode.ROW_INVALID, Stage.PROMPT, f"{row.where}: {error}"), None
        whole = prompt.prompt_tokens + item.of.sampling.max_new_tokens
        if whole > self._context_length:
            asked = f"{prompt.prompt_tokens} prompt tokens and {item.of.sampling.max_new_tokens} new ones"
            message = f"{row.where}: {asked} are more than the context of {self._context_length}"
            return Failure(FailureCode.TOO_LONG, Stage.PROMPT, message), prompt
        if recheck and not encoder.recheck(row.fields, row.source, row.key, prompt):
            message = f"{row.where}: the ids differ from those of the conversation encoded as a whole"
            return Failure(FailureCode.PROMPT_NOT_CANONICAL, Stage.PROMPT, message), prompt
        return prompt

    def _append(self) -> None:
        if self._batch:
            depth = self._view.project.run.queue
            if self._queue.depth() >= depth.high:
                self._wait_while(lambda: self._queue.depth() > depth.low)
            if self._stopping.is_set():
                return
            self._queue.append(self._batch)
            self._batch = []
            if len(self._pending) > 2 * depth.high:
                # What left the queue stands in the results, where `_consider` looks too.
                self._pending = self._queue.identities()
        self._flushed = time.monotonic()

    def _wait_while(self, full: Callable[[], bool]) -> None:
        while full() and not self._stopping.wait(0.05):
            pass


def _sampled(identity: bytes) -> bool:
    """Choose by identity, so that a run that is repeated checks the same items."""
    return int.from_bytes(identity[-2:], "little") % _RECHECK_ONE_IN == 0
