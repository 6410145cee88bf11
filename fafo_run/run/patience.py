"""When an engine that gives no answer is asked again, and when that is the item's fault, or a run's end."""

from __future__ import annotations

import asyncio
import time

from fafo_build.errors import EngineError
from fafo_run.engines.base import Engine, Prefix, Unavailable
from fafo_run.item import Claim

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 15.0
_CANARY = 30.0
"""Seconds within which an engine that lives answers a prefix."""


class Patience:
    """Tells an outage (nobody gets an answer) from an item that fails while the engine lives.

    An outage costs no item an attempt: a server that is away for an hour must not turn the queue into failure
    records. So after each call that brought nothing back the engine is asked for the prefix alone, a canary.
    """

    def __init__(self, engine: Engine, attempts: int, give_up: float = 1800.0) -> None:
        """`give_up` is how many seconds of outage end the run."""
        self._engine = engine
        self.attempts = attempts
        self._give_up = give_up
        self._failures: dict[bytes, int] = {}
        self._canary = asyncio.Lock()
        self._asked = 0.0
        self._lives = False
        self._wait = 0.0
        self._since: float | None = None
        self._reason = ""

    @property
    def notice(self) -> str:
        """What the run waits for; empty when the engine answers."""
        return f"no answers from the engine: {self._reason}" if self._since is not None else ""

    def answered(self, claims: list[Claim]) -> None:
        """An engine call came back."""
        self.end_of_outage()
        for claim in claims:
            self._failures.pop(claim.item.identity, None)

    async def lost(self, claims: list[Claim], prefix: Prefix, reason: str) -> list[Claim]:
        """An engine call brought nothing back; return the claims whose attempts are used up."""
        if await self._is_alive(prefix):
            self.end_of_outage()
            for claim in claims:
                self._failures[claim.item.identity] = self._failures.get(claim.item.identity, 0) + 1
        else:
            self.outage(reason)
        return [claim for claim in claims if self._failures.get(claim.item.identity, 0) >= self.attempts]

    def outage(self, reason: str) -> None:
        """The engine didn't even answer a prefix."""
        self._since = self._since or time.monotonic()
        self._wait = min(_LONGEST_WAIT, max(_FIRST_WAIT, 2 * self._wait))
        self._reason = reason

    def end_of_outage(self) -> None:
        """The engine answered something."""
        self._wait, self._since, self._reason = 0.0, None, ""

    async def wait(self) -> None:
        """Return when the engine may be asked again.

        Raises `EngineError` when it hasn't answered for so long that a person must look.
        """
        if self._since is None:
            return
        if time.monotonic() - self._since > self._give_up:
            raise EngineError.of(
                f"no answers from the engine for {self._give_up / 60:.0f} minutes: {self._reason}",
                cure="see to the server, then start the run again; nothing that came back is lost",
            )
        await asyncio.sleep(self._wait)

    async def _is_alive(self, prefix: Prefix) -> bool:
        """Send a canary, unless one was sent while this call waited for another's to come back."""
        lost = time.monotonic()
        async with self._canary:
            if self._asked < lost:
                self._asked = time.monotonic()
                try:
                    await asyncio.wait_for(self._engine.warm(prefix), _CANARY)
                    self._lives = True
                except (Unavailable, TimeoutError):
                    self._lives = False
            return self._lives
