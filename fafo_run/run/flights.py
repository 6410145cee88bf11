"""What is under way at which server: who is aboard when one dies, and what an idle one may take over."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import define, field

from fafo_run.engines.base import Prefix
from fafo_run.item import Claim
from fafo_run.run.rank import Rank
from fafo_run.run.server import Server

SUSPECT = 2
"""An item that was aboard at so many deaths of servers is a suspect: it flies as the only one of its kind."""
_PATIENCE = 5.0
"""Seconds that an answer may take anywhere, before an idle server takes the item over."""
_SLOWER = 4.0
"""How many times what an idle server takes for an answer another may take."""


@define(eq=False)
class Flight:
    """Claims that one call of an engine answers."""

    rank: Rank
    claims: list[Claim]
    prefix: Prefix
    epoch: int
    """How many warm-ups the prefix had had."""
    begun: float
    """Seconds of the monotonic clock."""
    task: asyncio.Task[None] | None = None
    taken_over_by: Rank | None = None
    broken: bool = False
    """Whether its connection broke, and it isn't known yet what that means."""


@define
class Flights:
    """All that is under way."""

    _flights: dict[Flight, None] = field(factory=dict)
    """In the order in which they began."""
    _deaths: Counter[bytes] = field(factory=Counter)
    """How often an item was aboard when a server died, for those that it was."""
    _moved: set[int] = field(factory=set)
    """Tokens of claims that were taken over once: nobody takes them again."""

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, flight: Flight) -> bool:
        return flight in self._flights

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights))

    def begin(self, rank: Rank, claims: list[Claim], prefix: Prefix) -> Flight:
        """Note that these leave now."""
        flight = Flight(rank, claims, prefix, rank.warmth.epoch(prefix.artifact), time.monotonic())
        self._flights[flight] = None
        rank.room.taken += 1
        return flight

    def end(self, flight: Flight) -> None:
        """Note that it has landed."""
        del self._flights[flight]
        flight.rank.room.taken -= 1
        flight.rank.stirred.set()

    def done(self, claim: Claim) -> None:
        """Forget what an item was suspected of: it has an outcome."""
        self._deaths.pop(claim.item.identity, None)
        self._moved.discard(claim.token)

    def is_suspect(self, claim: Claim) -> bool:
        """Return whether an item was aboard at too many deaths."""
        return self._deaths[claim.item.identity] >= SUSPECT if self._deaths else False

    def has_suspect(self, server: Server) -> bool:
        """Return whether a suspect is aboard."""
        return bool(self._deaths) and any(self._suspects(self.aboard(server)))

    def aboard(self, server: Server) -> list[Flight]:
        """Return what is under way at a server."""
        return [flight for flight in self._flights if flight.rank.server is server]

    def died(self, server: Server) -> list[Claim]:
        """A server died; return the claims that did it: the one suspect aboard, if there is just one.

        Otherwise all that were aboard come nearer to being suspects.
        """
        aboard = self.aboard(server)
        suspects = list(self._suspects(aboard))
        if len(suspects) == 1:
            return suspects
        self._deaths.update(claim.item.identity for flight in aboard for claim in flight.claims)
        return []

    def broken(self, server: Server) -> list[Claim]:
        """A server that may well live is asked no more; return the claims that broke its connections.

        What is behind it may have died of one of many that broke together: each is judged as by `broke`.
        """
        flights = [flight for flight in self.aboard(server) if flight.broken]
        return [claim for flight in flights for claim in flight.claims if self.broke(claim)]

    def broke(self, claim: Claim) -> bool:
        """A connection broke at a server that lives; return whether this item is to blame: it was a suspect.

        Otherwise it comes nearer to being one.
        """
        if self.is_suspect(claim):
            return True
        self._deaths[claim.item.identity] += 1
        return False

    def relieve(self, idle: Rank) -> list[Flight]:
        """Return what an idle rank should take over, now that nothing else waits: at most what it could
        compute besides what it has.

        That is what only waits inside a busier server, the newest first, and what takes far longer elsewhere
        than it would here.
        """
        spare = min(idle.room.free, -_waiting(idle))
        if spare <= 0:
            return []
        found: dict[Flight, None] = {}
        busiest = max(
            (rank for rank in {flight.rank for flight in self._flights} if rank is not idle),
            key=_waiting,
            default=None,
        )
        if busiest is not None and (waiting := _waiting(busiest)) > 0:
            theirs = [flight for flight in self._flights if flight.rank is busiest]
            found |= dict.fromkeys(theirs[-min(waiting, spare) :])
        if idle.server.usual is not None:
            limit = time.monotonic() - _PATIENCE - _SLOWER * idle.server.usual
            found |= {
                flight: None
                for flight in self._flights
                if flight.begun < limit and flight.rank.server is not idle.server
            }
        movable = [flight for flight in found if self._may_move(flight)]
        return movable[:spare]

    def move(self, flight: Flight, rank: Rank) -> None:
        """Let `rank` take a flight over: it is called back from where it is."""
        self._moved.update(claim.token for claim in flight.claims)
        flight.taken_over_by = rank
        if flight.task is not None:
            flight.task.cancel()

    def _may_move(self, flight: Flight) -> bool:
        return (
            flight.taken_over_by is None
            and flight.task is not None
            and not any(claim.token in self._moved or self.is_suspect(claim) for claim in flight.claims)
        )

    def _suspects(self, flights: Iterable[Flight]) -> Iterator[Claim]:
        return (claim for flight in flights for claim in flight.claims if self.is_suspect(claim))


def _waiting(rank: Rank) -> int:
    """Return how many of a rank's flights it can't be computing yet; below 0, how many more it could."""
    return rank.room.taken - rank.server.capabilities.running
