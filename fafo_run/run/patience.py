"""When an engine that doesn't answer is asked again, and when that becomes the item's fault, or the
end of a run.
"""

from __future__ import annotations

import asyncio
import time

from fafo_build.errors import EngineError
from fafo_run.item import Claim

_FIRST_WAIT = 0.5
_LONGEST_WAIT = 15.0


class Patience:
    """Tells an outage (nobody gets an answer) from an item that fails while others get through.

    An outage costs no item an attempt: a server that is away for an hour must not turn the queue into failure
    records.
    """

    def __init__(self, attempts: int, give_up: float = 300.0) -> None:
        self._attempts = attempts
        self._give_up = give_up
        self._failures: dict[bytes, int] = {}
        self._last_answer = time.monotonic()
        self._wait = 0.0
        self._since: float | None = None
        self._reason = ""

    @property
    def notice(self) -> str:
        """What the run waits for; empty when the engine answers."""
        return f"the engine doesn't answer: {self._reason}" if self._since is not None else ""

    def answered(self, claims: list[Claim]) -> None:
        """An engine call came back."""
        self._last_answer = time.monotonic()
        self._wait, self._since, self._reason = 0.0, None, ""
        for claim in claims:
            self._failures.pop(claim.item.identity, None)

    def lost(self, claims: list[Claim], sent: float, reason: str) -> list[Claim]:
        """An engine call brought nothing back; return the claims whose attempts are used up.

        `sent` is the monotonic time at which the call began: if others were answered since, this call's items
        are to blame, else the engine is.
        """
        if self._last_answer > sent:
            for claim in claims:
                self._failures[claim.item.identity] = self._failures.get(claim.item.identity, 0) + 1
        else:
            self._since = self._since or time.monotonic()
            self._wait = min(_LONGEST_WAIT, max(_FIRST_WAIT, 2 * self._wait))
            self._reason = reason
        return [claim for claim in claims if self._failures.get(claim.item.identity, 0) >= self._attempts]

    async def wait(self) -> None:
        """Return when the engine may be asked again.

        Raises `EngineError` when it hasn't answered for so long that a person must look.
        """
        if self._since is None:
            return
        if time.monotonic() - self._since > self._give_up:
            raise EngineError.of(
                f"the engine hasn't answered for {self._give_up:.0f} s: {self._reason}",
                cure="see to the server, then start the run again; nothing that came back is lost",
            )
        await asyncio.sleep(self._wait)
