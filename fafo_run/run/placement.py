"""Which prefixes a rank prefers: all, or, where they don't fit one cache together, a share of its own.

The share is chosen by rendezvous hashing with bounded loads, so that a server that comes or goes moves few
prefixes. A preference is no more than that: who has nothing left of its own helps the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from fafo_build.bake.tree import common
from fafo_run.item import Ids

_SLACK = 1.25
"""How much more than its equal share of tokens a place may get."""


@frozen
class Seat:
    """A place for prefixes: one rank of a server."""

    name: str
    """The same in every run: the server's URL and the rank."""
    cache_tokens: int | None
    """What it holds; None when it isn't told."""
    reserved: int
    """How many of these tokens running requests take."""


def shares(seats: Sequence[Seat], prefixes: Mapping[str, int], needed: int) -> dict[str, list[str]]:
    """Return per seat the artifacts that it prefers, in the order given; nothing when all fit everywhere.

    `prefixes` is the length of each artifact's prefix in tokens; `needed` is what all take together, what
    they share counted once.
    """
    if len(seats) < 2 or all(
        seat.cache_tokens is None or needed + seat.reserved <= seat.cache_tokens for seat in seats
    ):
        return {}
    loads = dict.fromkeys((seat.name for seat in seats), 0)
    most = _SLACK * sum(prefixes.values()) / len(seats)
    chosen: dict[str, list[str]] = {seat.name: [] for seat in seats}
    for artifact, tokens in prefixes.items():
        ranked = sorted(loads, key=lambda name: _weight(artifact, name), reverse=True)
        name = next(
            (name for name in ranked if loads[name] + tokens <= most), min(ranked, key=loads.__getitem__)
        )
        loads[name] += tokens
        chosen[name].append(artifact)
    return chosen


def together(prefixes: Iterable[Ids]) -> int:
    """Return how many tokens a cache needs for all of these: once for what they share."""
    before: Ids = ()
    tokens = 0
    for ids in sorted(prefixes):
        tokens += len(ids) - common(before, ids)
        before = ids
    return tokens


def _weight(artifact: str, name: str) -> bytes:
    return hashlib.sha256(f"{artifact} {name}".encode()).digest()
