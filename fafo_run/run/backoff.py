"""How long to wait before something that failed is tried again: ever longer, and not for ever."""

from __future__ import annotations

from attrs import define

FIRST = 1.0
LONGEST = 60.0


@define
class Backoff:
    """Seconds between tries."""

    first: float = FIRST
    longest: float = LONGEST
    _next: float = 0.0

    def failed(self) -> float:
        """Return how long to wait now; the next time twice as long."""
        wait = self._next or self.first
        self._next = min(self.longest, 2 * wait)
        return wait

    def worked(self) -> None:
        """Begin anew."""
        self._next = 0.0
