"""The claims of a run: which entry is handed out under which attempt token, and until when. Memory only."""

from __future__ import annotations

from collections.abc import Iterable

from fafo_run.item import Claim, QueuedItem

Place = tuple[bytes, int]
"""Segment uuid and offset."""


class ClaimTable:
    """Bounded by what is in flight, and by what was given back and not yet finished. Not thread-safe."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._held: dict[Place, tuple[Claim, float]] = {}
        self._attempts: dict[Place, int] = {}
        self._last_token = 0

    def __contains__(self, place: object) -> bool:
        return place in self._held

    def __len__(self) -> int:
        return len(self._held)

    def take(self, segment: bytes, offset: int, item: QueuedItem, now: float) -> Claim:
        """Hand out an entry under a new token, from `now` (monotonic seconds) for one lease."""
        self._last_token += 1
        place = (segment, offset)
        attempt = self._attempts.get(place, 0) + 1
        self._attempts[place] = attempt
        claim = Claim(segment, offset, self._last_token, attempt, item)
        self._held[place] = (claim, now + self._lease)
        return claim

    def is_current(self, claim: Claim) -> bool:
        """Return whether this very claim still holds its entry."""
        held = self._held.get((claim.segment, claim.offset))
        return held is not None and held[0].token == claim.token

    def give_back(self, claims: Iterable[Claim]) -> list[Claim]:
        """Let go of those claims that are current, remember their attempts, and return them."""
        current = [claim for claim in claims if self.is_current(claim)]
        for claim in current:
            del self._held[claim.segment, claim.offset]
        return current

    def finish(self, claim: Claim) -> None:
        """Forget an entry: whoever holds it now is late."""
        self._held.pop((claim.segment, claim.offset), None)
        self._attempts.pop((claim.segment, claim.offset), None)

    def expired(self, now: float) -> list[Claim]:
        """Return the claims whose lease has ended."""
        return [claim for claim, until in self._held.values() if until <= now]
