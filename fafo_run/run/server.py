"""One server of a run, with what is known of its health: it answers, it is quarantined, or it is out.

Nothing but answers decides about health: a server may say that it is well while it hangs, and that it isn't
while it works. What was lost is judged by a canary, the prefix alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fafo_build.errors import EngineError
from fafo_run.engines.base import Busy, Capabilities, Counters, Engine, Prefix, Unavailable, WarmUp
from fafo_run.run.backoff import Backoff
from fafo_run.run.evidence import AnyEvent, Ended, Evidence, Excluded, Quarantined, Returned, Started, Sums
from fafo_run.run.rank import Rank
from fafo_run.run.room import Room

CANARY = 30.0
"""Seconds within which a server that lives answers a prefix, or something else."""
_FIRST_PROBE = 0.5
_LONGEST_PROBE = 15.0
_LOADS = 2.0
"""Seconds between two questions for a server's load."""
_STREAK = 5
"""So many lost requests in a row, and none answered between: nothing of use comes from this server now."""
_MEMORY = 0.1
"""How much the last answer counts in a server's usual time."""
IN_PROCESS = "in process"
"""Stands for the server where the engine is none."""


class Server:
    """An engine that answers, or is away; its ranks share that. One event loop uses it."""

    def __init__(
        self,
        engine: Engine,
        capabilities: Capabilities,
        evidence: Evidence,
        say: Callable[[str], None],
        *,
        differs: Callable[[Capabilities], str | None],
    ) -> None:
        """`say` tells people; `differs` says why a server that has come back can't be used any more."""
        self.engine = engine
        self.capabilities = capabilities
        self.name = capabilities.server or IN_PROCESS
        self.ranks = [
            Rank(self, number, Room(capabilities.concurrency)) for number in range(capabilities.ranks)
        ]
        self.usual: float | None = None
        """Seconds that an answer takes here, lately; None before the first."""
        self.lost_count = 0
        """Requests without an answer, in this life of the server."""
        self._again_before = 0
        """Requests that the engine had sent once more before this life of the server."""
        self.reason = ""
        """Why nothing is sent to it; empty while it is asked."""
        self.on_quarantine: Callable[[bool], None] = lambda _: None
        """Called when it is quarantined; with True when its connections broke, as when it dies."""
        self.silent_since: float | None = None
        """Since when it hasn't told its load, in seconds of the monotonic clock; None while it does."""
        self.fault: BaseException | None = None
        """What ended the looking after it: an error of fafo's own, or of its disk."""
        self._evidence = evidence
        self._say = say
        self._differs = differs
        self._answered_at = 0.0
        self._under_way = 0
        self._idle_until = 0.0
        """When something was under way here for the first time since nothing was."""
        self._sums = Sums()
        self._streak = 0
        """Requests that were lost since the last one that was answered."""
        self._canary = asyncio.Lock()
        self._asked = 0.0
        self._known: Prefix | None = None
        """A prefix that it has computed."""
        self._broke = False
        """Whether a connection broke, of what was lost since the last canary."""
        self._lives = True
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> bool:
        """Whether it may be asked."""
        return not self.reason

    async def begin(self) -> None:
        """Note what it is, and look after it from now on."""
        limits = self.capabilities
        self._again_before = self.engine.sent_again
        self.tell(
            Started,
            version=limits.version,
            model=limits.model,
            page_size=limits.page_size,
            prefix_cache=limits.prefix_cache,
            cache_tokens=limits.cache_tokens,
            ranks=limits.ranks,
            running=min(limits.running, limits.concurrency),
            settings=dict(limits.settings),
            counters=await self._counters(),
        )
        if limits.server:
            self._start(self._follow_load())

    async def end(self) -> None:
        """Note what became of it, and look after it no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.tell(Ended, sums=self._total(), counters=await self._counters() if self.up else None)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Something is under way here, for as long as this lasts."""
        if not self._under_way:
            self._idle_until = time.monotonic()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    @property
    def unanswered(self) -> float:
        """For how many seconds something has been under way here, and nothing was answered."""
        if not self._under_way:
            return 0.0
        return time.monotonic() - max(self._idle_until, self._answered_at)

    def answered(self, requests: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Count what it answered."""
        self._answered_at = time.monotonic()
        sums = self._sums
        self._sums = Sums(
            sums.requests + requests,
            sums.prompt_tokens + prompt_tokens,
            sums.cached_tokens + cached_tokens,
        )

    def knows(self, prefix: Prefix) -> None:
        """Note a prefix that it has computed: what a probe asks for."""
        self._known = prefix

    def took(self, seconds: float) -> None:
        """Note that requests were answered, and how long it took."""
        self._streak = 0
        usual = self.usual
        self.usual = seconds if usual is None else usual + _MEMORY * (seconds - usual)

    async def warm(self, prefix: Prefix, rank: int) -> WarmUp:
        """Have a rank compute a prefix, and count what comes of it. Raises `Unavailable`."""
        try:
            with self.asking():
                found = await self.engine.warm(prefix, rank)
        except Busy:
            raise
        except (Unavailable, asyncio.CancelledError):
            self.lost_count += 1
            raise
        if found.computed:
            self.answered(1, found.prompt_tokens, found.cached_tokens)
        return found

    async def lives(self, prefix: Prefix, rank: int, error: Unavailable) -> bool:
        """Something was lost, by `error`; return whether the server lives, and quarantine it if not.

        One that answers canaries and nothing else would soon have failed all items: it does so at once.
        """
        lost = time.monotonic()
        if not self.up:
            return False
        self._broke = self._broke or error.broken
        async with self._canary:
            if self._asked < lost and self.up:
                # Of what is lost together the first one asks for all.
                self._asked = time.monotonic()
                self._lives = await self._canary_of(prefix, rank) is not None or self._answered_at > lost
                broke, self._broke = self._broke, False
                if not self._lives:
                    self.quarantine(str(error), prefix, died=broke)
                elif broke and await self._is_another():
                    self.quarantine(f"it is another process than before: {error}", prefix, died=True)
            if self._lives and self.up:
                self._streak += 1
                if self._streak >= _STREAK:
                    said = f"{self._streak} requests in a row brought no answer, the last: {error}"
                    self.quarantine(said, prefix, died=False)
            return self._lives and self.up

    async def _is_another(self) -> bool:
        """Return whether what answers now isn't what was asked until now: it restarted faster than anyone
        could see, and may be cold, or serve something else.
        """
        try:
            found = await self.engine.look()
        except EngineError:
            return False
        return found.boot != self.capabilities.boot or self._differs(found) is not None

    def quarantine(self, reason: str, prefix: Prefix, *, died: bool) -> None:
        """Send nothing any more until a probe, `prefix` alone, is answered. `died`: its connections broke."""
        if not self.up:
            return
        self.reason = reason = reason or "no answer"
        self.tell(Quarantined, reason=reason)
        why = reason.removeprefix(f"{self.name}: ")
        self._say(f"nothing more is sent to {self.name} until it answers again: {why}")
        self._start(self._probe(prefix))
        self.on_quarantine(died)

    def tell(self, kind: type[AnyEvent], **said: object) -> None:
        """Append to the evidence."""
        self._evidence.add(kind, self.name, **said)

    async def _canary_of(self, prefix: Prefix, rank: int) -> WarmUp | None:
        """Return what it answers to the prefix alone; None when it doesn't in time."""
        try:
            return await asyncio.wait_for(self.warm(prefix, rank), CANARY)
        except (Unavailable, TimeoutError):
            return None

    async def _probe(self, prefix: Prefix) -> None:
        """Ask again and again, ever more rarely, until it answers; then let work come again."""
        began, backoff = time.monotonic(), Backoff(_FIRST_PROBE, _LONGEST_PROBE)
        out = ""
        while True:
            await asyncio.sleep(backoff.failed())
            try:
                found = await self.engine.look()
            except EngineError as error:
                self.reason = str(error)
                continue
            differs = self._differs(found) or self._other_ranks(found)
            if differs is not None:
                if differs != out:
                    self.tell(Excluded, reason=differs)
                    self._say(f"{self.name} came back as another server, and isn't asked: {differs}")
                self.reason = out = differs
                continue
            # A new process counts from 0, and the canary is the first that it counts.
            restarted = not found.boot or found.boot != self.capabilities.boot
            counters = await self._counters()
            if restarted:
                self._sums, self.lost_count = Sums(), 0
                self._again_before = self.engine.sent_again
            self.capabilities = found
            canary = await self._canary_of(prefix, 0)
            if canary is not None:
                self._come_back(time.monotonic() - began, restarted, counters)
                self.ranks[0].warmed(prefix, canary)
                return

    def _come_back(self, after: float, restarted: bool, counters: Counters | None) -> None:
        self.reason, self._streak = "", 0
        self.tell(Returned, after=after, restarted=restarted, counters=counters)
        self._say(f"{self.name} answers again, after {after:.0f} s{', restarted' if restarted else ''}")
        for rank in self.ranks:
            rank.room.resize(self.capabilities.concurrency)
            rank.warmth.forget()
            rank.stirred.set()

    def _other_ranks(self, found: Capabilities) -> str | None:
        same = found.ranks == len(self.ranks)
        return None if same else f"it had {len(self.ranks)} data-parallel ranks, and has {found.ranks} now"

    async def _counters(self) -> Counters | None:
        try:
            return await self.engine.counters()
        except Unavailable:
            return None

    def _total(self) -> Sums:
        sums = self._sums
        lost = self.lost_count + self.engine.sent_again - self._again_before
        return Sums(sums.requests, sums.prompt_tokens, sums.cached_tokens, lost)

    async def _follow_load(self) -> None:
        """Let each rank's room follow what the server says of its load; and see that it is still the same."""
        while True:
            await asyncio.sleep(_LOADS)
            if not self.up:
                continue
            try:
                loads = await self.engine.load()
            except Unavailable:
                self.silent_since = self.silent_since or time.monotonic()
                continue
            silent, self.silent_since = self.silent_since is not None, None
            if silent and self._known is not None and await self._is_another():
                self.quarantine("it is another process than before", self._known, died=True)
            for rank, load in zip(self.ranks, loads, strict=False):
                rank.room.reported(load)
                rank.stirred.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault = error
