"""The dispatcher: claim, warm, submit, record. It never waits for a disk sync.

Retry and outages are `Patience`, warm prefixes are `Warmth`; the loop only calls them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fafo_run.engines.base import Answer, Capabilities, Completion, Engine, Prefix, Request, Unavailable
from fafo_run.item import Claim, Provenance, Record
from fafo_run.queue.queue import Queue
from fafo_run.run import records
from fafo_run.run.completer import Completer
from fafo_run.run.patience import Patience
from fafo_run.run.state import RunState
from fafo_run.run.view import ClassView, View
from fafo_run.run.warmth import Warmth

_IDLE = 0.02
"""Seconds between two looks into an empty queue."""


class Dispatcher:
    """Keeps the engine busy until nothing is left and nobody produces more, or until it is told to drain."""

    def __init__(
        self,
        queue: Queue,
        engine: Engine,
        capabilities: Capabilities,
        view: View,
        completer: Completer,
        state: RunState,
        patience: Patience,
        *,
        producing: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._capabilities = capabilities
        self._view = view
        self._classes = {of.name: of for of in view.classes}
        self._completer = completer
        self._state = state
        self._patience = patience
        self._producing = producing
        self.warmth = Warmth(engine)
        self._slots = asyncio.Semaphore(capabilities.concurrency)
        self._flights: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None
        self._draining = False
        self._provenance: dict[tuple[str, str], Provenance] = {}
        """By class and source; one object each, so that the results pack it once."""

    def drain(self) -> None:
        """Claim nothing more; what is under way is finished."""
        self._draining = True

    async def run(self) -> None:
        """Dispatch until nothing is left. Cancelled, it drops what is under way; the queue still holds it."""
        try:
            while claims := await self._claim():
                prefix = self._prefix(claims)
                if await self._warm(claims, prefix):
                    self._submit(claims, prefix)
            while self._flights:
                await asyncio.wait(self._flights)
        finally:
            for flight in self._flights:
                flight.cancel()
            await asyncio.gather(*self._flights, return_exceptions=True)
        self._raise_crash()

    async def _claim(self) -> list[Claim]:
        """Wait for a free slot and for work, and take both; empty when there will be no more work."""
        await self._slots.acquire()
        while not self._draining and self._completer.fault is None:
            self._raise_crash()
            self._state.notice = self._patience.notice
            await self._patience.wait()
            # Asked before the queue is: what others add to it as their last act must still be seen.
            more = self._producing() or self._state.in_flight > 0
            held_back = self._completer.backlog > Completer.BACKLOG
            if not held_back:
                if claims := self._queue.claim(self._capabilities.batch):
                    self._state.in_flight += len(claims)
                    return claims
                if not more:
                    break
            await asyncio.sleep(_IDLE)
        self._slots.release()
        return []

    def _prefix(self, claims: list[Claim]) -> Prefix:
        artifact = self._class_of(claims[0]).artifact
        return Prefix(artifact.hash, artifact.prefix)

    def _class_of(self, claim: Claim) -> ClassView:
        """Return the class that stands for this work now; the queue hands out no other."""
        return self._classes[self._view.owner(claim.item.provenance) or ""]

    async def _warm(self, claims: list[Claim], prefix: Prefix) -> bool:
        try:
            await self.warmth.ensure(prefix)
        except Unavailable as error:
            self._patience.outage(str(error))
            self._queue.release(claims)
            self._landed(claims)
            return False
        self._patience.end_of_outage()
        return True

    def _submit(self, claims: list[Claim], prefix: Prefix) -> None:
        flight = asyncio.create_task(self._fly(claims, prefix))
        self._flights.add(flight)
        flight.add_done_callback(self._note)

    async def _fly(self, claims: list[Claim], prefix: Prefix) -> None:
        try:
            completions = await self._engine.generate([self._request(claim, prefix) for claim in claims])
        except Unavailable as error:
            await self._lost(claims, prefix, error)
        else:
            self._patience.answered(claims)
            for claim, completion in zip(claims, completions, strict=True):
                self._completer.record(self._record(claim, completion, prefix), claim)
        finally:
            self._landed(claims)

    def _request(self, claim: Claim, prefix: Prefix) -> Request:
        item = claim.item
        sampling = self._class_of(claim).sampling
        return Request(item.identity, claim.attempt, prefix, item.suffix, sampling, item.seed)

    def _record(self, claim: Claim, completion: Completion, prefix: Prefix) -> Record:
        shared = self._shared(claim)
        if isinstance(completion, Answer):
            expected = records.ceiling(prefix.ids, claim.item.prompt_tokens, self._capabilities.page_size)
            return records.answered(claim, completion, shared, expected)
        return records.rejected(claim, completion, shared)

    def _shared(self, claim: Claim) -> Provenance:
        of, source = self._class_of(claim), claim.item.provenance.source
        found = self._provenance.get((of.name, source))
        if found is None:
            found = records.provenance(of, source, self._capabilities)
            self._provenance[of.name, source] = found
        return found

    async def _lost(self, claims: list[Claim], prefix: Prefix, error: Unavailable) -> None:
        """Put claims back, but for those whose attempts are used up."""
        self.warmth.forget()
        used_up = await self._patience.lost(claims, prefix, str(error))
        for claim in used_up:
            record = records.exhausted(claim, self._shared(claim), self._patience.attempts, str(error))
            self._completer.record(record, claim)
        self._queue.release([claim for claim in claims if claim not in used_up])

    def _landed(self, claims: list[Claim]) -> None:
        self._state.in_flight -= len(claims)
        self._slots.release()

    def _note(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if not flight.cancelled() and (error := flight.exception()) is not None:
            self._crash = error

    def _raise_crash(self) -> None:
        """Let an error that isn't the engine's end the run at once, rather than when all is done."""
        if self._crash is not None:
            raise self._crash
