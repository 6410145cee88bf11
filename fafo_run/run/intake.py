"""The producer's work, whoever does it: `fafo run`, `fafo submit` and `fafo retry` take items through this.

It passes over what is done or waits already, and appends the rest in batches. It never waits for a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from attrs import define

from fafo_run.item import QueuedItem
from fafo_run.queue.outcomes import Outcomes
from fafo_run.run.making import Maker
from fafo_run.run.view import ViewItem

_BATCH = 1_000
"""Items per append to the queue."""
_TOGETHER = 64
"""Items that are encoded at once."""
_FLUSH = 1.0
"""Seconds after which a smaller batch is appended all the same, so that a slow source doesn't starve
an engine.
"""
_RENEW = 200_000
"""So many identities and more that this process took to wait are forgotten now and then: some are done."""


Passed = Callable[[ViewItem, bool], None]


@define
class Taken:
    """What became of the items that were looked at."""

    queued: int = 0
    """Made and appended."""
    unsendable: int = 0
    """Of these, how many have no prompt that could be sent: they will be failure records."""
    done: int = 0
    """They have an output already."""
    failed: int = 0
    """They have a failure record that nobody put back."""
    waiting: int = 0
    """They wait already."""
    interrupted: bool = False
    """Whether others weren't looked at."""


class Intake:
    """Takes items of a view into the queue. Not thread-safe.

    That an item waits is looked up in memory, about 100 bytes for each: where two producers don't know of
    each other an item may be queued twice, and is computed once all the same.
    """

    def __init__(
        self,
        maker: Maker,
        outcomes: Outcomes,
        waiting: Callable[[], set[bytes]],
        append: Callable[[list[QueuedItem]], None],
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`waiting` reads which identities wait, `append` queues, durably; `stopped` ends a pass early."""
        self.taken = Taken()
        self._maker = maker
        self._outcomes = outcomes
        self._read_waiting = waiting
        self._append = append
        self._stopped = stopped
        self._waiting: set[bytes] = set()
        self._renew_at = 0
        self._found: list[tuple[ViewItem, int]] = []
        """To be made, each with its `retry`."""
        self._batch: list[QueuedItem] = []
        """Made, to be appended."""
        self._flushed = 0.0

    def take(
        self,
        found: Iterable[ViewItem],
        *,
        retry: Callable[[ViewItem], int] = lambda item: 0,
        passed: Passed | None = None,
    ) -> None:
        """Queue what of these items is neither done nor waiting; `retry` says how often each was put back.

        What was made when it is stopped, or when `found` raises, is appended or simply not queued, and then
        found again by the next pass. `passed` is told of each item that has an outcome, and whether that is a
        failure.
        """
        self.renew()
        self._found.clear()
        self._batch.clear()
        self._flushed = time.monotonic()
        for item in found:
            if self._stopped():
                self.taken.interrupted = True
                return
            self._consider(item, retry(item), passed)
            if len(self._found) >= _TOGETHER:
                self._make()
            if len(self._batch) >= _BATCH or ((self._batch or self._found) and self._age() > _FLUSH):
                self._flush()
        self._flush()

    def renew(self) -> None:
        """Read anew what waits: others queue, too, and what left the queue stands in the results."""
        self._waiting = self._read_waiting()
        self._renew_at = 2 * max(_RENEW, len(self._waiting))

    def has_outcome(self, item: ViewItem) -> bool:
        """Return whether an item has an output or a failure."""
        return self._outcomes.is_done(item.identity)

    def unqueued(self, items: Iterable[QueuedItem]) -> list[QueuedItem]:
        """Return those that nobody has queued or done meanwhile, after a look at what waits now."""
        self.renew()
        left = [
            item
            for item in items
            if item.identity not in self._waiting and not self._outcomes.is_done(item.identity, item.retry)
        ]
        self._waiting.update(item.identity for item in left)
        return left

    def _consider(self, item: ViewItem, retry: int, passed: Passed | None) -> None:
        if item.identity in self._waiting:
            self.taken.waiting += 1
        elif self._outcomes.is_done(item.identity, retry):
            failed = not self._outcomes.has_output(item.identity)
            self.taken.failed += failed
            self.taken.done += not failed
            if passed is not None:
                passed(item, failed)
        else:
            self._waiting.add(item.identity)
            self._found.append((item, retry))

    def _make(self) -> None:
        self._batch += self._maker.make_each(self._found)
        self._found = []

    def _flush(self) -> None:
        if self._found:
            self._make()
        if self._batch:
            self._append(self._batch)
            self.taken.queued += len(self._batch)
            self.taken.unsendable += sum(item.failure is not None for item in self._batch)
            self._batch = []
            if len(self._waiting) > self._renew_at:
                self.renew()
        self._flushed = time.monotonic()

    def _age(self) -> float:
        return time.monotonic() - self._flushed
