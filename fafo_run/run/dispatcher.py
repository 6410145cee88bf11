"""The dispatcher: claim, warm, submit, record, with one feeder per rank. It never waits for a disk sync.

A feeder takes work as its server has room for it, so that a slow server takes less. Of health knows `Server`,
of warm prefixes and room `Rank`, of what is under way `Flights`, of leases `Heartbeat`; the loop calls them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from fafo_run.engines.base import Answer, Busy, Completion, Prefix, Unavailable
from fafo_run.item import Claim, Record
from fafo_run.queue.queue import Queue
from fafo_run.run import preflight
from fafo_run.run.completer import Completer
from fafo_run.run.flights import Flight, Flights
from fafo_run.run.heartbeat import Heartbeat
from fafo_run.run.pool import Pool
from fafo_run.run.rank import Rank
from fafo_run.run.records import Lost
from fafo_run.run.server import Server
from fafo_run.run.state import RunState
from fafo_run.run.view import View
from fafo_run.run.work import Work

_IDLE = 0.02
"""Seconds between two looks into an empty queue."""
_LOOK = 0.5
"""Seconds after which a feeder whose server has no room looks again all the same."""
_DIED = Lost("the server died with it aboard, and with no other that was aboard at earlier deaths")


class Dispatcher:
    """Keeps the servers busy until nothing is left and nobody produces more, or until it is told to drain."""

    def __init__(
        self,
        queue: Queue,
        pool: Pool,
        view: View,
        completer: Completer,
        state: RunState,
        *,
        producing: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._completer = completer
        self._state = state
        self._producing = producing
        self._attempts = view.project.run.attempts
        self._heartbeat = Heartbeat(queue, view.project.run.lease)
        self._work = Work(view, preflight.context_length(view, pool.capabilities))
        self._flights = Flights()
        self._aside: deque[Claim] = deque()
        """Suspects that wait until no other one is aboard."""
        self._taken_over: dict[Rank, deque[Claim]] = {}
        """What a rank takes over from others."""
        self._feeders: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None
        self._ending = asyncio.Event()
        """Set when nothing is to be claimed any more: all is done, the run is to stop, or a feeder failed."""
        self._histories: dict[bytes, list[Lost]] = {}
        """Of items that are tried again: the attempts of this run."""
        self._tried: dict[bytes, Server] = {}
        """Of the same items: where the last attempt was."""

    def drain(self) -> None:
        """Claim nothing more; what is under way is finished."""
        self._ending.set()

    async def run(self) -> None:
        """Dispatch until nothing is left. Cancelled, it gives back what is under way."""
        heart = asyncio.create_task(self._heartbeat.run())
        try:
            for server in self._pool.servers:
                self._take_in(server)
            self._pool.on_join = self._take_in
            await self._until_the_end()
            while tasks := [flight.task for flight in self._flights if flight.task is not None]:
                await asyncio.wait(tasks)
        finally:
            self._ending.set()
            under_way = [heart, *self._feeders, *(flight.task for flight in self._flights if flight.task)]
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            # What waits for a server, and is under way nowhere.
            self._give_back(self._heartbeat.held)
        self._raise_crash()

    async def _until_the_end(self) -> None:
        """Return when nothing is claimed any more; a feeder that still warms a prefix needn't."""
        ending = asyncio.create_task(self._ending.wait())
        try:
            while self._feeders and not ending.done():
                await asyncio.wait({ending, *self._feeders}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ending, *self._feeders):
                task.cancel()
            await asyncio.gather(ending, *self._feeders, return_exceptions=True)

    def _take_in(self, server: Server) -> None:
        server.on_quarantine = lambda died: self._recall(server, died=died)
        for rank in server.ranks:
            feeder = asyncio.create_task(self._feed(rank))
            self._feeders.add(feeder)
            feeder.add_done_callback(self._feeders.discard)
            feeder.add_done_callback(self._note)

    async def _feed(self, rank: Rank) -> None:
        while claims := await self._claim(rank):
            prefix = self._work.prefix(claims[0])
            if rank.needs_warming(prefix):
                # Nobody waits for a warm-up who could be answered elsewhere.
                self._give_back(claims)
                # What was submitted leaves first: in a tight cache the new prefix may push out its own.
                await asyncio.sleep(0)
                await rank.warm(prefix)
            else:
                self._submit(rank, claims, prefix)

    async def _claim(self, rank: Rank) -> list[Claim]:
        """Wait for room and for work, and take some of both; empty when there will be no more work."""
        looked_again = False
        while not (self._ending.is_set() or self._completer.fault):
            self._raise_crash()
            self._state.wait_for("engine", self._pool.notice)
            if not await self._has_room(rank):
                continue
            # Asked before the queue is: what others add to it as their last act must still be seen.
            more = self._producing() or self._state.in_flight > 0 or not self._completer.idle
            if self._completer.backlog > Completer.BACKLOG:
                await asyncio.sleep(_IDLE)
                continue
            if claims := self._waiting_here(rank):
                return claims
            found = self._queue.claim(rank.room.free * rank.server.capabilities.batch, self._pool.order(rank))
            if claims := self._admit(found):
                self._heartbeat.begin(claims)
                self._state.in_flight += len(claims)
                return claims
            if not found and not more:
                if looked_again:
                    self._ending.set()
                    break
                # What another process queued until now is done in this run.
                await asyncio.to_thread(self._queue.refresh)
            looked_again = not found and not more
            if not found and not self._producing():
                self._relieve(rank)
            await asyncio.sleep(0 if found or looked_again else _IDLE)
        return []

    async def _has_room(self, rank: Rank) -> bool:
        """Return whether something may be sent now; else wait a moment, or until something has changed."""
        if rank.server.up and rank.room.free:
            return True
        rank.stirred.clear()
        wait = rank.room.pause if 0 < rank.room.pause < _LOOK else _LOOK
        try:
            await asyncio.wait_for(rank.stirred.wait(), wait)
        except TimeoutError:
            return False
        return False

    def _waiting_here(self, rank: Rank) -> list[Claim]:
        """Return claims that are held already and that this rank may take: of one prefix."""
        mine = self._taken_over.get(rank)
        if mine:
            first = mine.popleft()
            claims = [first]
            while (
                mine
                and len(claims) < rank.room.free
                and self._work.prefix(mine[0]) is self._work.prefix(first)
            ):
                claims.append(mine.popleft())
            return claims
        if self._aside and not self._flights.has_suspect(rank.server):
            return [self._aside.popleft()]
        return []

    def _admit(self, claims: list[Claim]) -> list[Claim]:
        """Return the claims that can be sent; the others are failures without an engine being asked."""
        sendable = []
        for claim in claims:
            failed = self._work.unsendable(claim, self._pool.servers[0].capabilities)
            if failed is None:
                sendable.append(claim)
            else:
                self._completer.record(failed, claim)
        return sendable

    def _submit(self, rank: Rank, claims: list[Claim], prefix: Prefix) -> None:
        for together in _batches(self._leaving(rank, claims), rank.server.capabilities.batch):
            flight = self._flights.begin(rank, together, prefix)
            flight.task = asyncio.create_task(self._fly(flight))
            flight.task.add_done_callback(partial(self._landed, flight))
            flight.task.add_done_callback(self._note)

    def _leaving(self, rank: Rank, claims: list[Claim]) -> Iterator[Claim]:
        """Yield what may leave now.

        Of suspects one per server, so that a death tells which one it was; what was lost here goes to
        another server, as soon as that has room.
        """
        aboard = self._flights.has_suspect(rank.server)
        for claim in claims:
            if (other := self._elsewhere(rank, claim)) is not None:
                self._hand_over(other, [claim])
                continue
            if self._flights.is_suspect(claim):
                if aboard:
                    self._aside.append(claim)
                    continue
                aboard = True
            yield claim

    def _elsewhere(self, rank: Rank, claim: Claim) -> Rank | None:
        """Return another server's rank that should try a claim whose last attempt was lost here."""
        if self._tried.get(claim.item.identity) is not rank.server:
            return None
        others = [other for other in self._pool.ranks if other.server is not rank.server and other.server.up]
        return max(others, key=lambda other: other.room.free, default=None)

    def _hand_over(self, rank: Rank, claims: Iterable[Claim]) -> None:
        """Let a rank take claims that are held already."""
        self._taken_over.setdefault(rank, deque()).extend(claims)
        rank.stirred.set()

    async def _fly(self, flight: Flight) -> None:
        requests = [self._work.request(claim) for claim in flight.claims]
        try:
            completions = await flight.rank.generate(requests)
        except Unavailable as error:
            await self._lost(flight, error)
        else:
            for claim, completion in zip(flight.claims, completions, strict=True):
                self._judge(flight, claim, completion)
                self._end(claim, self._work.completed(claim, completion, flight.rank.server.capabilities))
        finally:
            self._land(flight)

    def _judge(self, flight: Flight, claim: Claim, completion: Completion) -> None:
        """See by what an answer found in the cache whether its prefix is still there."""
        if isinstance(completion, Answer):
            ceiling = self._work.ceiling(claim, flight.rank.server.capabilities)
            flight.rank.judge(flight.prefix, flight.epoch, completion, ceiling)

    async def _lost(self, flight: Flight, error: Unavailable) -> None:
        """Count an attempt of claims that got no answer, if the server lives; else they are given back."""
        rank = flight.rank
        if isinstance(error, Busy) and rank.room.taken > 1:
            # It has enough to do; that says nothing about this item.
            return
        flight.broken = error.broken
        if await rank.server.lives(flight.prefix, rank.number, error):
            for claim in flight.claims:
                # Whose connection broke may have been aboard with one that kills what is behind the URL.
                if not error.broken or self._flights.broke(claim):
                    self._try_again(claim, rank.server, Lost(str(error), error.code))

    def _try_again(self, claim: Claim, server: Server, lost: Lost) -> None:
        """Count an attempt: the item waits anew, or has failed when there are no attempts left."""
        attempts = claim.item.attempts + 1
        history = self._histories.setdefault(claim.item.identity, [])
        history.append(lost)
        self._tried[claim.item.identity] = server
        if attempts >= self._attempts:
            self._end(claim, self._work.exhausted(claim, server.capabilities, history, attempts))
        else:
            self._heartbeat.end([claim])
            self._completer.again(claim)

    def _recall(self, server: Server, *, died: bool) -> None:
        """A server is quarantined: what is under way there goes elsewhere."""
        for claim in self._flights.died(server) if died else self._flights.broken(server):
            self._try_again(claim, server, _DIED)
        for rank in server.ranks:
            self._give_back(list(self._taken_over.pop(rank, ())))
        for flight in self._flights.aboard(server):
            if flight.task is not None and flight.task is not asyncio.current_task():
                flight.task.cancel()

    def _relieve(self, idle: Rank) -> None:
        for flight in self._flights.relieve(idle):
            self._flights.move(flight, idle)

    def _end(self, claim: Claim, record: Record) -> None:
        self._heartbeat.end([claim])
        self._completer.record(record, claim)
        self._histories.pop(claim.item.identity, None)
        self._tried.pop(claim.item.identity, None)
        self._flights.done(claim)

    def _land(self, flight: Flight) -> None:
        """Free the place of a flight; give back the claims for which nothing was handed over, or hand them to
        the rank that takes them over.
        """
        self._flights.end(flight)
        taker = flight.taken_over_by
        if taker is not None and taker.server.up and not self._ending.is_set():
            kept = [claim for claim in flight.claims if self._heartbeat.holds(claim)]
            self._hand_over(taker, kept)
            self._state.in_flight -= len(flight.claims) - len(kept)
        else:
            self._give_back(flight.claims)

    def _landed(self, flight: Flight, _: asyncio.Task[None]) -> None:
        """Land a flight that was called back before its first step: it can't do so by itself."""
        if flight in self._flights:
            self._land(flight)

    def _give_back(self, claims: list[Claim]) -> None:
        if held := self._heartbeat.end(claims):
            self._queue.release(held)
        self._state.in_flight -= len(claims)

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash = self._crash or error
            self._ending.set()

    def _raise_crash(self) -> None:
        """Let an error that isn't the engine's end the run at once, rather than when all is done."""
        if (crash := self._crash or self._pool.fault) is not None:
            raise crash


def _batches(claims: Iterator[Claim], size: int) -> Iterator[list[Claim]]:
    while batch := list(islice(claims, size)):
        yield batch
