"""What the queue hands out next: which (model, artifact, lane) after which. Knows neither files nor items."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from fafo_run.log.route import Route


class Order:
    """Drains one route before the next, and goes round the artifacts in a fixed order.

    The order is the caller's, who knows which prefixes share a beginning. It goes round from where it is, so
    that work which comes back to an artifact that was left doesn't pull the cache away from the present
    family.
    """

    def __init__(self) -> None:
        self._ranks: dict[bytes, int] = {}
        self._preferred: frozenset[bytes] = frozenset()
        self._present: Route | None = None

    def follow(self, artifacts: Sequence[str], preferred: Collection[str] = ()) -> None:
        """Go round these from now on: hashes, 64 hex digits. Others come last, by age.

        Those that are `preferred` come before all that aren't, whatever is present.
        """
        self._ranks = {bytes.fromhex(found): rank for rank, found in enumerate(dict.fromkeys(artifacts))}
        self._preferred = frozenset(bytes.fromhex(found) for found in preferred)

    def entered(self, route: Route) -> None:
        """Something of this route was handed out."""
        self._present = route

    def sorted(self, by_age: Iterable[Route]) -> list[Route]:
        """Return the routes in the order in which they are to be asked; given oldest first."""
        return sorted(dict.fromkeys(by_age), key=self._distance)

    def _distance(self, route: Route) -> tuple[bool, bool, int]:
        """Return how far a route is from the present one; equals stay in their order."""
        last = len(self._ranks)
        here = self._ranks.get(self._present.artifact, 0) if self._present else 0
        rank = self._ranks.get(route.artifact)
        steps = last if rank is None else (rank - here) % last
        return route.artifact not in self._preferred, route != self._present, steps
