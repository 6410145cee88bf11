"""The claims of a run: which entry is handed out under which attempt token, and until when. Memory only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fafo_run.item import Claim, QueuedItem

Place = tuple[bytes, int]
"""Segment uuid and offset."""


class ClaimTable:
    """Bounded by what is in flight, and by what was given back and not yet finished. Not thread-safe.

    Leases are in seconds of a monotonic clock, so that nobody who sets the time ends or prolongs one.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._held: dict[Place, tuple[Claim, float]] = {}
        self.flying: dict[bytes, Place] = {}
        """Where the claimed entry of each identity is."""
        self._twins: dict[bytes, list[Place]] = {}
        """Other entries of identities that are in flight: passed over until the flight ends."""
        self._times: dict[Place, int] = {}
        """How often an entry was handed out."""
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._held)

    def take(self, segment: bytes, offset: int, item: QueuedItem, now: float) -> Claim:
        """Hand out an entry under a new token, from `now` (monotonic seconds) for one lease."""
        self._last_token += 1
        place = (segment, offset)
        times = self._times.get(place, 0) + 1
        self._times[place] = times
        claim = Claim(segment, offset, self._last_token, item.attempts + times, item)
        self._held[place] = (claim, now + self._lease)
        self.flying[item.identity] = place
        return claim

    def pass_over(self, identity: bytes, place: Place) -> None:
        """Remember another entry of an identity that is in flight."""
        self._twins.setdefault(identity, []).append(place)

    def is_current(self, claim: Claim) -> bool:
        """Return whether this very claim still holds its entry."""
        held = self._held.get((claim.segment, claim.offset))
        return held is not None and held[0].token == claim.token

    def extend(self, claims: Iterable[Claim], now: float) -> int:
        """Let the leases of those claims that are current begin anew at `now`; return how many that is."""
        current = [claim for claim in claims if self.is_current(claim)]
        for claim in current:
            self._held[claim.segment, claim.offset] = (claim, now + self._lease)
        return len(current)

    def give_back(self, claims: Iterable[Claim]) -> list[Place]:
        """Let go of those claims that are current; return what is to be looked at again, twins included.

        How often they were handed out is remembered.
        """
        places: list[Place] = []
        for claim in claims:
            if self.is_current(claim):
                place = (claim.segment, claim.offset)
                del self._held[place]
                places += [place, *self._landed(claim)]
        return places

    def finish(self, claim: Claim) -> tuple[bool, Sequence[Place]]:
        """Forget an entry, whoever holds it now.

        Returns whether that isn't this claim any more, and the entry's twins, to be looked at again.
        """
        place = (claim.segment, claim.offset)
        self._times.pop(place, None)
        held = self._held.pop(place, None)
        late = held is None or held[0].token != claim.token
        return late, () if held is None else self._landed(claim)

    def expired(self, now: float) -> list[Claim]:
        """Return the claims whose lease has ended."""
        return [claim for claim, until in self._held.values() if until <= now]

    def _landed(self, claim: Claim) -> Sequence[Place]:
        del self.flying[claim.item.identity]
        return self._twins.pop(claim.item.identity, ())
