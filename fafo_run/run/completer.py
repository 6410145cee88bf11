"""The completer: the only role that makes anything observable.

What became of claims comes in through one hand-off, in memory, from the dispatcher. It becomes durable in
groups, in the one order that loses nothing: records synced, then indexed, then the markers of their items.
"""

from __future__ import annotations

import queue as handoff
import threading
import time

from attrs import frozen

from fafo_run.item import Claim, Record
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.state import RunState

_GATHER = 0.01
"""Seconds that a group commit waits for company."""
_GROUP = 2_000
"""The most records of one group commit."""
_SYNC_MARKERS = 2.0
"""Seconds between two syncs of the markers; a lost marker costs one identity check, so they may wait."""
_COLLECT = 10.0
"""Seconds between two looks for leases that have ended, and segments that are done or have long been idle."""
_REFRESH = 0.5
"""Seconds between two looks for what other processes have queued."""


@frozen
class _Finished:
    claim: Claim
    record: Record | None
    """None for an attempt without an answer: the item is queued anew, with one attempt more."""


class Completer(threading.Thread):
    """Takes records, makes them durable, retires their inputs, counts them."""

    BACKLOG = 10 * _GROUP
    """Above this many records in the hand-off the other roles should hold back."""

    def __init__(self, queue: Queue, results: Results, state: RunState) -> None:
        super().__init__(name="fafo-completer")
        self._queue = queue
        self._results = results
        self._state = state
        self._incoming: handoff.SimpleQueue[_Finished | None] = handoff.SimpleQueue()
        self._synced = self._collected = self._refreshed = time.monotonic()
        self._given = self._durable = 0
        """How much was handed over, and how much of it is durable; each counted by one thread."""
        self._told = 0
        """How many findings of the queue were told."""
        self.dropped = 0
        """Records whose identity had an output already."""
        self.fault: BaseException | None = None
        """What ended this role early. Nothing may be claimed any more: it couldn't be recorded."""

    def record(self, record: Record, claim: Claim) -> None:
        """Hand a record over; it is durable some milliseconds later, and then its item retires."""
        self._put(_Finished(claim, record))

    def again(self, claim: Claim) -> None:
        """Hand over an attempt that brought no answer: the item waits anew, with one attempt more."""
        self._put(_Finished(claim, None))

    @property
    def backlog(self) -> int:
        """How much waits in the hand-off."""
        return self._incoming.qsize()

    @property
    def idle(self) -> bool:
        """True when all that was handed over is durable."""
        return self._given == self._durable

    def finish(self) -> None:
        """Make everything durable that was handed over, then end. Raises what ended the role early."""
        self._incoming.put(None)
        self.join()
        if self.fault is not None:
            raise self.fault

    def run(self) -> None:
        """Commit groups until `finish` is called or recording fails."""
        try:
            more = True
            while more:
                group, more = self._gather()
                if group:
                    self._commit(group)
                self._keep_house()
            self._queue.sync_markers()
        except BaseException as error:  # noqa: BLE001 - not swallowed: `fault` stops the run, `finish` raises it
            self.fault = error

    def _put(self, finished: _Finished) -> None:
        self._given += 1
        self._incoming.put(finished)

    def _gather(self) -> tuple[list[_Finished], bool]:
        """Wait for the next group; False when it is the last one."""
        group: list[_Finished] = []
        wait = 0.2
        while len(group) < _GROUP:
            try:
                finished = self._incoming.get(timeout=wait)
            except handoff.Empty:
                break
            if finished is None:
                return group, False
            group.append(finished)
            wait = _GATHER
        return group, True

    def _commit(self, group: list[_Finished]) -> None:
        taken = self._results.take([each.record for each in group if each.record is not None])
        self._queue.again([each.claim for each in group if each.record is None])
        ended = [each.claim for each in group if each.record is not None]
        self._queue.retire(ended)
        self._state.count(taken)
        self.dropped += len(ended) - len(taken)
        self._durable += len(group)

    def _keep_house(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH:
            self._queue.refresh()
            for line in self._queue.findings[self._told :]:
                self._state.say(f"queue: {line}")
                self._told += 1
            self._refreshed = now
        if now - self._synced >= _SYNC_MARKERS:
            self._queue.sync_markers()
            self._synced = now
        if now - self._collected >= _COLLECT:
            # Whoever holds such an item may still answer: the first record of an identity counts.
            self._queue.release(self._queue.expired())
            self._queue.collect()
            self._results.seal_idle()
            self._collected = now
