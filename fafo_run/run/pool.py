"""The servers of a run: opened together, compared, given their shares of the prefixes, ended together.

One that isn't there at the start joins when it is. What an item needs of one server is `server.Rank`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from fafo_build.errors import EngineError, Problem, StoreError
from fafo_run.engines.base import Capabilities, Engine, Unavailable, WarmUp
from fafo_run.engines.fleet import difference, remarks, strangers
from fafo_run.queue.order import Order
from fafo_run.run import placement, preflight
from fafo_run.run.backoff import Backoff
from fafo_run.run.evidence import Evidence
from fafo_run.run.rank import Rank
from fafo_run.run.server import Server
from fafo_run.run.view import View

_QUIET = 5.0
"""Seconds until people are told that servers are waited for."""
_FIRST_TRY = 1.0
_LONGEST_TRY = 15.0
_SILENT = 15.0
"""Seconds without a word from a server, after which people are told."""
_UNANSWERED = 60.0
_SLOWER = 4.0
"""Seconds, and how many times what an answer takes lately, without one, after which people are told."""


class Pool:
    """One event loop uses it."""

    def __init__(
        self, engines: Sequence[Engine], view: View, evidence: Evidence, say: Callable[[str], None]
    ) -> None:
        """`say` tells people what happens."""
        self._engines = engines
        self._view = view
        self._evidence = evidence
        self._say = say
        self._absent: dict[str, str] = {}
        """Of servers that haven't joined yet, why; by URL."""
        self._joining: set[asyncio.Task[None]] = set()
        self._orders: dict[Rank, Order] = {}
        self.servers: list[Server] = []
        self.on_join: Callable[[Server], None] = lambda _: None
        """Called for each server that joins later."""
        self._fault: BaseException | None = None

    async def start(self) -> None:
        """Start all engines, and compare what they are.

        Raises `EngineError` when none can be started, when one can't serve the view, and when two differ so
        that they can't answer for one run.
        """
        started, absent = await self._started()
        for _, limits in started:
            if (differs := difference(started[0][1], limits)) is not None:
                raise EngineError.of(
                    f"two servers differ: {differs}",
                    cure="let all servers of an engine serve the same model in the same way, "
                    "or declare them as two engines",
                )
            preflight.check(self._view, limits)
        started = await self._that_answer(started, absent)
        needed = [_connections(limits) for _, limits in started]
        # One that isn't there yet is taken to be as large as the largest.
        preflight.descriptors(sum(needed) + max(needed) * len(absent))
        for line in self._remarks([limits for _, limits in started]):
            self._say(line)
        for engine, limits in started:
            await self._add(engine, limits)
        for engine, error in absent:
            self._absent[engine.server] = str(error)
            self._say(f"{error}; the run begins without it, and takes it in when it answers")
            task = asyncio.create_task(self._join(engine))
            self._joining.add(task)
            task.add_done_callback(self._note)

    async def stop(self) -> None:
        """Stop everything. Safe after a failed start."""
        for task in self._joining:
            task.cancel()
        await asyncio.gather(*self._joining, return_exceptions=True)
        await asyncio.gather(*(self._end(server) for server in self.servers))
        await asyncio.gather(*(engine.stop() for engine in self._engines))

    @property
    def capabilities(self) -> list[Capabilities]:
        """What each server is."""
        return [server.capabilities for server in self.servers]

    @property
    def names(self) -> list[str]:
        """The servers' URLs; none for an engine in this process."""
        return [engine.server for engine in self._engines if engine.server]

    @property
    def away(self) -> dict[str, str]:
        """Of the servers that nothing is sent to now, why; by URL."""
        return self._absent | {server.name: server.reason for server in self.servers if not server.up}

    @property
    def ranks(self) -> list[Rank]:
        """All ranks of all servers."""
        return [rank for server in self.servers for rank in server.ranks]

    @property
    def warm_ups(self) -> tuple[WarmUp, ...]:
        """Every warm-up of this run."""
        return tuple(found for rank in self.ranks for found in rank.warm_ups)

    @property
    def notice(self) -> str:
        """What the run waits for; empty as long as all servers that are asked answer."""
        if up := [server for server in self.servers if server.up]:
            return "; ".join(filter(None, map(_hush, up)))
        return f"no answers from the engine: {'; '.join(dict.fromkeys(each.reason for each in self.servers))}"

    @property
    def fault(self) -> BaseException | None:
        """What ended the looking after a server; nothing of the engine's."""
        return self._fault or next((server.fault for server in self.servers if server.fault), None)

    def order(self, rank: Rank) -> Order:
        """Return the order in which a rank takes the work."""
        return self._orders[rank]

    def forget(self) -> None:
        """Take no prefix for warm any more."""
        for rank in self.ranks:
            rank.warmth.forget()

    async def _started(self) -> tuple[list[tuple[Engine, Capabilities]], list[tuple[Engine, EngineError]]]:
        """Start all at once; return those that could be started, and those that couldn't, with the reason."""
        starts = [asyncio.ensure_future(engine.start()) for engine in self._engines]
        hint = asyncio.get_running_loop().call_later(_QUIET, self._say_who_is_silent, starts)
        try:
            found = await asyncio.gather(*starts, return_exceptions=True)
        finally:
            hint.cancel()
        started, absent = list[tuple[Engine, Capabilities]](), list[tuple[Engine, EngineError]]()
        for engine, each in zip(self._engines, found, strict=True):
            match each:
                case Capabilities():
                    started.append((engine, each))
                case EngineError():
                    absent.append((engine, each))
                case _:
                    raise each
        if not started:
            raise EngineError([problem for _, error in absent for problem in error.problems])
        return started, absent

    def _say_who_is_silent(self, starts: Sequence[asyncio.Future[Capabilities]]) -> None:
        silent = sum(not start.done() for start in starts)
        if len(starts) > 1:
            self._say(f"waiting for {silent} of {len(starts)} servers, which say nothing")

    async def _that_answer(
        self, started: list[tuple[Engine, Capabilities]], absent: list[tuple[Engine, EngineError]]
    ) -> list[tuple[Engine, Capabilities]]:
        """Ask all whether they would refuse a class; stop those that don't answer, and count them as absent.

        Raises `EngineError` when one refuses, and when none answers.
        """
        asked = (preflight.ask(self._view, engine) for engine, _ in started)
        answering = []
        for (engine, limits), found in zip(
            started, await asyncio.gather(*asked, return_exceptions=True), strict=True
        ):
            match found:
                case None:
                    answering.append((engine, limits))
                case Unavailable():
                    await engine.stop()
                    absent.append((engine, _silent(limits, found)))
                case _:
                    raise found
        if not answering:
            raise EngineError([problem for _, error in absent for problem in error.problems])
        return answering

    def _remarks(self, fleet: Sequence[Capabilities]) -> list[str]:
        """Return what people should know of the servers before the run begins."""
        return remarks(fleet) + strangers(fleet, [self._view.classes[0].model.locked.path])

    async def _add(self, engine: Engine, limits: Capabilities) -> None:
        first = self.servers[0].capabilities if self.servers else limits
        server = Server(
            engine,
            limits,
            self._evidence,
            self._say,
            differs=lambda later: difference(first, later) or self._beyond_files(engine, later),
        )
        await server.begin()
        self.servers.append(server)
        for rank in server.ranks:
            self._orders[rank] = Order()
        self._share()

    def _share(self) -> None:
        """Tell each rank in which order to take prefixes, and which of them are its own."""
        prefixes = {of.artifact.hash: of.artifact.prefix for of in self._view.classes}
        extra = max(of.sampling.max_new_tokens for of in self._view.classes)
        seats = [
            placement.Seat(
                rank.name,
                rank.server.capabilities.cache_tokens,
                # What an item has beyond its prefix isn't known yet; its output is bounded.
                rank.server.capabilities.running * extra,
            )
            for rank in self.ranks
        ]
        lengths = {name: len(ids) for name, ids in prefixes.items()}
        own = placement.shares(seats, lengths, placement.together(prefixes.values()))
        for rank in self.ranks:
            self._orders[rank].follow(list(prefixes), own.get(rank.name, ()))

    async def _join(self, engine: Engine) -> None:
        """Try to start an engine until it works, then take it in, if it is what the others are."""
        backoff, told = Backoff(_FIRST_TRY, _LONGEST_TRY), ""
        while True:
            await asyncio.sleep(backoff.failed())
            try:
                limits = await engine.start()
                preflight.check(self._view, limits)
                await preflight.ask(self._view, engine)
            except (EngineError, Unavailable) as error:
                await engine.stop()
                told = self._absent[engine.server] = self._say_once(str(error), told)
                continue
            differs = difference(self.servers[0].capabilities, limits) or self._beyond_files(engine, limits)
            if differs is None:
                break
            await engine.stop()
            told = self._absent[engine.server] = self._say_once(f"a server can't be used: {differs}", told)
        await self._add(engine, limits)
        del self._absent[engine.server]
        self._say(f"{limits.server} has joined")
        self.on_join(self.servers[-1])

    def _beyond_files(self, engine: Engine, limits: Capabilities) -> str | None:
        """Return why this process can't have the connections that an engine needs now; None when it can."""
        others = (each.capabilities for each in self.servers if each.engine is not engine)
        try:
            preflight.descriptors(_connections(limits) + sum(map(_connections, others)))
        except EngineError as error:
            return str(error)
        return None

    async def _end(self, server: Server) -> None:
        try:
            await server.end()
        except StoreError as error:
            # What stopped the run is more important than what its servers did at the end.
            self._say(f"what {server.name} did isn't noted: {error}")

    def _say_once(self, text: str, told: str) -> str:
        if text != told:
            self._say(text)
        return text

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error


def _connections(limits: Capabilities) -> int:
    """Return how many requests may be under way at a server."""
    return limits.concurrency * limits.ranks


def _hush(server: Server) -> str:
    """Return for how long a server that is asked has said nothing; empty when that is as ever."""
    silent = time.monotonic() - server.silent_since if server.silent_since else 0.0
    if silent >= _SILENT:
        return f"no word from {server.name} for {silent:.0f} s"
    if server.unanswered >= max(_UNANSWERED, _SLOWER * (server.usual or 0.0)):
        name = server.capabilities.server or "the engine"
        return f"no answer from {name} for {server.unanswered:.0f} s"
    return ""


def _silent(limits: Capabilities, error: Unavailable) -> EngineError:
    said = f"the server at {limits.server} doesn't answer: {error}" if limits.server else str(error)
    return EngineError(Problem(said, cure="see to the server, then start the run again"))
