"""Extends the leases of what an engine still works on, so that a slow answer is not asked for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fafo_run.item import Claim
from fafo_run.queue.queue import Queue

_PER_LEASE = 4
"""Beats per lease: some may be late, as when a machine is busy."""


class Heartbeat:
    """Knows which claims are under way. One event loop uses it."""

    def __init__(self, queue: Queue, lease: float) -> None:
        """`lease` is in seconds."""
        self._queue = queue
        self._every = lease / _PER_LEASE
        self._held: dict[int, Claim] = {}

    def begin(self, claims: Iterable[Claim]) -> None:
        """Keep these from now on."""
        self._held.update((claim.token, claim) for claim in claims)

    def end(self, claims: Iterable[Claim]) -> list[Claim]:
        """Let go of these, and return those that were still kept."""
        return [claim for claim in claims if self._held.pop(claim.token, None) is not None]

    def holds(self, claim: Claim) -> bool:
        """Return whether this claim is kept."""
        return claim.token in self._held

    @property
    def held(self) -> list[Claim]:
        """The claims that are under way."""
        return list(self._held.values())

    def beat(self) -> int:
        """Extend all leases now; return how many claims still held their items."""
        return self._queue.extend(self.held)

    async def run(self) -> None:
        """Beat until it is cancelled."""
        while True:
            await asyncio.sleep(self._every)
            self.beat()
