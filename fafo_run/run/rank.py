"""One data-parallel rank of a server: its warm prefixes, its room, and what it answers.

Whether the server lives isn't known here: what is lost is handed to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from fafo_run.engines.base import Answer, Busy, Completion, Prefix, Request, Unavailable, WarmUp
from fafo_run.run.evidence import Missed, Warmed
from fafo_run.run.room import Room
from fafo_run.run.warmth import Warmth

if TYPE_CHECKING:
    from fafo_run.run.server import Server


@define(eq=False)
class Rank:
    """One data-parallel rank of a server: a prefix cache, and room for so many calls."""

    server: Server
    number: int
    room: Room
    warmth: Warmth = field(factory=Warmth)
    warm_ups: list[WarmUp] = field(factory=list)
    """Every warm-up of this run, in order."""
    stirred: asyncio.Event = field(factory=asyncio.Event)
    """Set when something has changed for whoever feeds this rank."""

    @property
    def name(self) -> str:
        """The server's URL, with the rank's number where there are several."""
        one = self.server.capabilities.ranks == 1
        return self.server.name if one else f"{self.server.name}#{self.number}"

    def needs_warming(self, prefix: Prefix) -> bool:
        """Return whether a warm-up is due before items with this prefix are sent."""
        limits = self.server.capabilities
        fills_a_page = len(prefix.ids) >= limits.page_size
        return limits.prefix_cache and fills_a_page and not self.warmth.is_warm(prefix.artifact)

    async def warm(self, prefix: Prefix) -> None:
        """Have the prefix computed; where that fails the server is quarantined."""
        try:
            found = await self.server.warm(prefix, self.number)
        except Busy as error:
            self.room.refused()
            if self.room.shut:
                self.server.quarantine(str(error), prefix, died=False)
            return
        except Unavailable as error:
            self.server.quarantine(str(error), prefix, died=error.broken)
            return
        self.room.answered()
        self.warmed(prefix, found)

    def warmed(self, prefix: Prefix, found: WarmUp) -> None:
        """A warm-up has finished; where it was refused there will be no better one."""
        why = self.warmth.why(prefix.artifact)
        self.warmth.warmed(prefix.artifact)
        if not found.computed:
            return
        self.server.knows(prefix)
        self.warm_ups.append(found)
        self.server.tell(
            Warmed,
            artifact=prefix.artifact,
            rank=self.number,
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens,
            why=why.value,
        )

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Ask the engine, and count what comes back. Raises `Unavailable`."""
        begun = time.monotonic()
        try:
            with self.server.asking():
                completions = await self.server.engine.generate(requests, self.number)
        except Busy:
            self.room.refused()
            raise
        except (Unavailable, asyncio.CancelledError):
            self.server.lost_count += len(requests)
            raise
        pairs = zip(requests, completions, strict=True)
        answered = [
            (asked.prompt_tokens, found.cached_tokens) for asked, found in pairs if isinstance(found, Answer)
        ]
        self.server.answered(
            len(answered), sum(asked for asked, _ in answered), sum(had for _, had in answered)
        )
        self.server.took(time.monotonic() - begun)
        self.room.answered()
        return completions

    def judge(self, prefix: Prefix, epoch: int, answer: Answer, ceiling: int) -> None:
        """Hold what an answer found in the cache against its ceiling; `epoch` is of when it was sent."""
        if not self.server.capabilities.prefix_cache:
            return
        if self.warmth.seen(prefix.artifact, epoch, whole=answer.cached_tokens >= ceiling):
            self.server.tell(
                Missed,
                artifact=prefix.artifact,
                rank=self.number,
                cached_tokens=answer.cached_tokens,
                ceiling=ceiling,
            )
