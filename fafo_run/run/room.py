"""How many calls one rank of a server may have under way: admission. It knows neither items nor servers."""

from __future__ import annotations

import time
from collections.abc import Callable

from fafo_run.engines.base import Load
from fafo_run.run.backoff import Backoff

WAITING = 128
"""Requests that may wait inside a server, beyond those that it computes: with more, SGLang's prefix-aware
schedule turns itself into first come, first served."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_SHUT = 8
"""Refusals in a row, over some 15 seconds: what takes nothing for so long may never again."""


class Room:
    """Bounds what is under way by what the server says it takes, and by how often it said no.

    After a refusal the bound halves and nothing is sent for a moment; each answer then widens it again, as
    congestion control does.
    """

    def __init__(self, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`most` is the bound when nothing speaks against it, in calls."""
        self._most = most
        self._reported = most
        self._limit = float(most)
        self._monotonic = monotonic
        self._pause = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._resume = 0.0
        self._refusals = 0
        """In a row."""
        self.taken = 0
        """How many calls are under way."""

    @property
    def limit(self) -> int:
        """How many may be."""
        return min(int(self._limit), self._reported)

    @property
    def free(self) -> int:
        """How many more may begin now."""
        return 0 if self.pause > 0 else max(0, self.limit - self.taken)

    @property
    def shut(self) -> bool:
        """Whether nothing is under way, and nothing was taken for long."""
        return self._refusals >= _SHUT and self.taken == 0

    @property
    def pause(self) -> float:
        """Seconds until something may be sent again; 0 or less when it may."""
        return self._resume - self._monotonic()

    def resize(self, most: int) -> None:
        """Begin anew with another bound: the server has started afresh."""
        self._most = self._reported = most
        self._limit = float(most)
        self._resume, self._refusals = 0.0, 0
        self._pause.worked()

    def refused(self) -> None:
        """The server takes no more: fewer from now on, and none for a moment."""
        if self.pause <= 0:  # Of many that are refused together the first one tells it all.
            self._limit = max(1.0, min(self._limit, self.taken) / 2)
            self._resume = self._monotonic() + self._pause.failed()
            self._refusals += 1

    def answered(self) -> None:
        """The server answered: a little more from now on."""
        if self._refusals:
            self._refusals = 0
            self._pause.worked()
        if self._limit < self._most:
            self._limit = min(float(self._most), self._limit + 1 / self._limit)

    def reported(self, load: Load) -> None:
        """The server said how it is loaded: while requests wait, it computes as many as it can."""
        bound = load.running + WAITING if load.waiting else self._most
        self._reported = max(1, min(self._most, bound))
