"""The sums of a verification: tokens of items, of warm-ups and of what was missed, and the count of items. No
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from attrs import Factory, frozen

from fafo_run.results.summary import Counts

Pair = tuple[str, str]
"""A class and a server."""


@frozen
class Hits:
    """Sums over finished items, in tokens."""

    items: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """As the engine counted."""
    ceiling_tokens: int = 0
    """What a perfect cache would have served."""
    reached_tokens: int = 0
    """Per item the lower of cached and ceiling: what one item has beyond its ceiling doesn't make up
    for another.
    """

    @classmethod
    def of(cls, counts: Counts) -> Hits:
        """Return what the results have counted."""
        return cls(
            counts.outputs,
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.expected_cached_tokens,
            counts.credited_tokens,
        )

    def __add__(self, other: Hits) -> Hits:
        return Hits(
            self.items + other.items,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.ceiling_tokens + other.ceiling_tokens,
            self.reached_tokens + other.reached_tokens,
        )

    @property
    def hit_rate(self) -> float | None:
        """Cached of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ceiling(self) -> float | None:
        """Ceiling of all prompt tokens."""
        return self.ceiling_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ratio(self) -> float | None:
        """How much of the ceiling was reached; 0 to 1."""
        return self.reached_tokens / self.ceiling_tokens if self.ceiling_tokens else None

    def as_json(self) -> dict[str, Any]:
        """Return the sums and their ratios."""
        return {
            "items": self.items,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "ceiling_tokens": self.ceiling_tokens,
            "hit_rate": self.hit_rate,
            "ceiling": self.ceiling,
            "ratio": self.ratio,
        }


@frozen
class WarmUps:
    """Sums over the warm-ups of prefixes of the present classes. They are no items, and are counted apart."""

    count: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """As the engine counted."""
    ceiling_tokens: int = 0
    """What they could have shared with prefixes that were warmed before, on the same rank of the same process
    of a server: whole pages."""
    by_why: Mapping[str, int] = Factory(dict)
    """How many were the first of a process (`first`), came after it returned (`restart`), or after its cache
    lost the prefix (`evicted`)."""

    def as_json(self) -> dict[str, Any]:
        """Return the sums and their rate."""
        return {
            "count": self.count,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "ceiling_tokens": self.ceiling_tokens,
            "hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None,
            "by_why": dict(self.by_why),
        }


@frozen
class Misses:
    """Finished items of one class at one server that found less than their ceiling in its cache."""

    items: int = 0
    tokens: int = 0
    """How many they lack together."""
    longest: int = 0
    """The most that one of them lacks, in tokens."""
    unit: int = 0
    """The greatest number that divides what each of them found, in tokens: whole pages show here. 0 when none
    found anything."""
    restart: int = 0
    """Of `tokens`, how many before their prefix was warmed because the server had come back."""
    evicted: int = 0
    """Of `tokens`, how many before their prefix was warmed because the cache had lost it."""

    @property
    def whole_pages(self) -> int:
        """The size of pages that explains all that is missed, since each item lacks less than one; else 0."""
        page = self.unit & -self.unit
        return page if page > 1 and self.longest < page else 0

    def __add__(self, other: Misses) -> Misses:
        return Misses(
            self.items + other.items,
            self.tokens + other.tokens,
            max(self.longest, other.longest),
            gcd(self.unit, other.unit),
            self.restart + other.restart,
            self.evicted + other.evicted,
        )


@frozen
class Completeness:
    """Every item of the view has one outcome or waits; and what else there is."""

    total: int
    """Items of the view."""
    completed: int
    failed: int
    waiting: int
    """In the queue, or not produced yet."""
    superseded: int
    """Records that count, of prompts, parameters, models or rows that have changed since."""
    doubled: int
    lost: int
    undecodable: int
    """Damaged places in the results."""

    def as_json(self) -> dict[str, int]:
        """Return the counts."""
        return {
            "total": self.total,
            "completed": self.completed,
            "failed": self.failed,
            "waiting": self.waiting,
            "superseded": self.superseded,
            "doubled": self.doubled,
            "lost": self.lost,
            "undecodable": self.undecodable,
        }
