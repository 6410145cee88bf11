"""What the evidence of a run says of its servers, process by process. Pure: it is given the events.

A life is one process of one server as one `fafo run` saw it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from attrs import Factory, define, frozen

from fafo_run.engines.base import Counters
from fafo_run.run.evidence import (
    AnyEvent,
    Ended,
    Missed,
    Returned,
    Started,
    Sums,
    Warmed,
    lives,
)


@frozen
class Life:
    """One process of one server, as far as one session used it."""

    server: str
    started: Started | None
    """What the session found when it began to use the server; of an earlier process if this one came later.
    None when the line is lost."""
    events: Sequence[AnyEvent]

    @property
    def cold(self) -> Returned | None:
        """The event this process came with in place of one before; None for the session's first."""
        first = self.events[0]
        return first if isinstance(first, Returned) and first.restarted else None

    @property
    def page_size(self) -> int:
        """Tokens; 1 when nobody said."""
        return self.started.page_size if self.started else 1

    @property
    def warmed(self) -> list[Warmed]:
        """Its warm-ups, in order."""
        return [event for event in self.events if isinstance(event, Warmed)]

    @property
    def missed(self) -> list[Missed]:
        """What it was seen to have lost, in order."""
        return [event for event in self.events if isinstance(event, Missed)]

    @property
    def before(self) -> Counters | None:
        """What it had counted when the session came to it."""
        found = self.cold or self.started
        return found.counters if found else None

    @property
    def after(self) -> Counters | None:
        """What it had counted when the session left it."""
        ended = self._ended
        return ended.counters if ended else None

    @property
    def sums(self) -> Sums | None:
        """What the session had from it; None when the session was killed, or the process ended first."""
        ended = self._ended
        return ended.sums if ended else None

    @property
    def evicted_tokens(self) -> int | None:
        """How many tokens its cache dropped for want of room meanwhile; None when it doesn't tell."""
        if self.before is None or self.after is None or self.after.requests < self.before.requests:
            return None
        # A counter that has counted nothing yet isn't told.
        return (self.after.evicted_tokens or 0) - (self.before.evicted_tokens or 0)

    @property
    def _ended(self) -> Ended | None:
        return next((event for event in reversed(self.events) if isinstance(event, Ended)), None)


def lives_of(events: list[AnyEvent]) -> list[Life]:
    """Return the lives of all servers, those of one server in order."""
    starts = {(event.session, event.server): event for event in events if isinstance(event, Started)}
    found = [Life(own[0].server, starts.get((own[0].session, own[0].server)), own) for own in lives(events)]
    return sorted(found, key=lambda life: (life.server, life.events[0].at))


@define
class _Times:
    """When a server warmed a prefix again, and when it was seen to lack it."""

    again: list[float] = Factory(list)
    whys: list[str] = Factory(list)
    last_missed: float = float("-inf")


class Losses:
    """Why an item may have found less than its ceiling, from what was warmed again after it."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self._times: dict[tuple[str, str], _Times] = {}
        for event in events:
            if isinstance(event, Warmed) and event.why != "first":
                times = self._times.setdefault((event.server, event.artifact), _Times())
                times.again.append(event.at)
                times.whys.append(event.why)
            elif isinstance(event, Missed):
                times = self._times.setdefault((event.server, event.artifact), _Times())
                times.last_missed = max(times.last_missed, event.at)

    def why(self, server: str, artifact: str, started: float) -> str | None:
        """Return `restart`, `evicted`, or None if nothing is known, for an item that was sent at `started`.

        That is why its prefix was warmed the next time. Where it wasn't any more, it counts as evicted if it
        was seen to be gone.
        """
        times = self._times.get((server, artifact))
        if times is None:
            return None
        at = bisect_right(times.again, started)
        if at < len(times.whys):
            return times.whys[at]
        return "evicted" if started <= times.last_missed else None
