"""The producer of a run: the thread that takes the view into the queue, and waits for room there.

A service's goes on: it takes what is new in the sources, again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from fafo_build.project.declaration import QueueDepth
from fafo_run.item import QueuedItem
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.intake import Intake
from fafo_run.run.making import Maker
from fafo_run.run.polling import Polling
from fafo_run.run.state import RunState
from fafo_run.run.view import View, ViewItem

_LOOK = 0.05
"""Seconds between two looks at how full the queue is."""


class Producer(threading.Thread):
    """Takes items of a view in, once; of a service's polling, what is new until it is stopped."""

    def __init__(
        self,
        view: View,
        maker: Maker,
        queue: Queue,
        results: Results,
        state: RunState,
        found: Iterable[ViewItem] | Polling,
        *,
        stopping: threading.Event,
    ) -> None:
        """`stopping` ends it; what it has in hand is simply not queued, and found again by the next run."""
        super().__init__(name="fafo-producer", daemon=True)
        self._queue = queue
        self._state = state
        self._depth: QueueDepth = view.project.run.queue
        self._stopping = stopping
        self._found = found
        self._intake = Intake(maker, results, queue.identities, self._append, stopped=stopping.is_set)
        self.fault: BaseException | None = None
        """What ended this role early; the queue still holds all that was appended."""

    def run(self) -> None:
        """Queue the view, then end; or go on until it is stopped."""
        try:
            if isinstance(self._found, Polling):
                while not self._stopping.is_set():
                    self._found.look(self._intake)
                    self._stopping.wait(self._found.pause())
            else:
                self._intake.take(self._found, passed=self._state.found_done)
        except BaseException as error:  # noqa: BLE001 - not swallowed: whoever started it raises it or starts it anew
            self.fault = error

    def _append(self, batch: list[QueuedItem]) -> None:
        if self._queue.depth() >= self._depth.high:
            self._wait_while(lambda: self._queue.depth() > self._depth.low)
            # Another producer may have queued the same meanwhile.
            batch = self._intake.unqueued(batch)
        if batch and not self._stopping.is_set():
            self._queue.append(batch)

    def _wait_while(self, full: Callable[[], bool]) -> None:
        while full() and not self._stopping.wait(_LOOK):
            pass
