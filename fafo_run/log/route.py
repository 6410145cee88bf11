"""What all entries of a segment share, and therefore where an entry may go."""

from __future__ import annotations

from typing import NamedTuple


class Route(NamedTuple):
    """What all entries of a segment share."""

    model_fingerprint: bytes
    artifact: bytes
    lane: int


def route_of(model_fingerprint: str, artifact: str, lane: int) -> Route:
    """Return the route of an entry; the two hashes are 64 hex digits. Raises `ValueError` if they aren't."""
    route = Route(bytes.fromhex(model_fingerprint), bytes.fromhex(artifact), lane)
    if (len(route.model_fingerprint), len(route.artifact)) != (32, 32):
        raise ValueError("a route takes two hashes of 64 hex digits each")
    return route
