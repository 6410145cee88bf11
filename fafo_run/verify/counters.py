"""Holds what the run had from each server against the server's own counters. Pure.

Never against its gauge: that is of the last batch. A life can be compared when the server told its counters
at both ends, and the run came to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import Factory, evolve, frozen

from fafo_run.run.evidence import Sums
from fafo_run.verify.lives import Life

TOLERANCE = 0.005
"""Share of the run's own count by which the two may differ."""


class Agreement(Enum):
    """What a comparison comes to; of several, the last one here counts."""

    UNKNOWN = "unknown"
    """Nothing could be compared."""
    AGREE = "agree"
    LOST = "lost_requests"
    """The server counted more, in no more requests than the run sent and got no answer for."""
    MORE = "more"
    """The server counted more: it has other clients."""
    FEWER = "fewer"
    """The server counted fewer."""


@frozen
class Comparison:
    """The lives of one server together, in tokens and requests."""

    agreement: Agreement = Agreement.UNKNOWN
    compared: int = 0
    """Lives that could be compared; the sums are over these."""
    unknown: int = 0
    """Lives that couldn't: the server tells no counters, or one of the two ended too early."""
    unseen: int = 0
    """Lives in which the server began to count anew: it restarted, and the run didn't see it."""
    run: Sums = Factory(Sums)
    """What the run had from the server."""
    server_requests: int = 0
    server_prompt_tokens: int = 0
    server_cached_tokens: int = 0
    evicted_tokens: int | None = None
    """None when the server doesn't tell."""

    def __add__(self, other: Comparison) -> Comparison:
        worst = max(self.agreement, other.agreement, key=list(Agreement).index)
        told = [found for found in (self.evicted_tokens, other.evicted_tokens) if found is not None]
        mine, others = self.run, other.run
        return Comparison(
            worst,
            self.compared + other.compared,
            self.unknown + other.unknown,
            self.unseen + other.unseen,
            Sums(
                mine.requests + others.requests,
                mine.prompt_tokens + others.prompt_tokens,
                mine.cached_tokens + others.cached_tokens,
                mine.lost + others.lost,
            ),
            self.server_requests + other.server_requests,
            self.server_prompt_tokens + other.server_prompt_tokens,
            self.server_cached_tokens + other.server_cached_tokens,
            sum(told) if told else None,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what docs/verify.md describes."""
        return {
            "agreement": self.agreement.value,
            "compared": self.compared,
            "unknown": self.unknown + self.unseen,
            "run": {
                "requests": self.run.requests,
                "prompt_tokens": self.run.prompt_tokens,
                "cached_tokens": self.run.cached_tokens,
                "lost": self.run.lost,
            },
            "server": {
                "requests": self.server_requests,
                "prompt_tokens": self.server_prompt_tokens,
                "cached_tokens": self.server_cached_tokens,
                "evicted_tokens": self.evicted_tokens,
            },
        }


def compare(found: Iterable[Life]) -> Mapping[str, Comparison]:
    """Return the comparison of each server, by URL."""
    result: dict[str, Comparison] = {}
    for life in found:
        result[life.server] = result.get(life.server, Comparison()) + _compare(life)
    return result


def _compare(life: Life) -> Comparison:
    before, after, sums = life.before, life.after, life.sums
    if before is None or after is None or sums is None:
        return Comparison(unknown=1)
    if after.requests < before.requests or after.prompt_tokens < before.prompt_tokens:
        return Comparison(unseen=1)
    compared = Comparison(
        Agreement.AGREE,
        compared=1,
        run=sums,
        server_requests=after.requests - before.requests,
        server_prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        server_cached_tokens=after.cached_tokens - before.cached_tokens,
        evicted_tokens=life.evicted_tokens,
    )
    return evolve(compared, agreement=_agreement(compared))


def _agreement(found: Comparison) -> Agreement:
    off = [
        _off(found.run.prompt_tokens, found.server_prompt_tokens),
        _off(found.run.cached_tokens, found.server_cached_tokens),
    ]
    if min(off) < 0:
        return Agreement.FEWER
    if max(off) == 0:
        return Agreement.AGREE
    beyond = found.server_requests - found.run.requests
    return Agreement.LOST if 0 < beyond <= found.run.lost else Agreement.MORE


def _off(run: int, server: int) -> int:
    """Return 0 when both are equal within the tolerance, else the sign of what the server has beyond."""
    if abs(server - run) <= TOLERANCE * run:
        return 0
    return 1 if server > run else -1
