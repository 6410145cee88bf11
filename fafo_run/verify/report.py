"""The nouns of a verification: what was counted, what was found, and the verdict. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from attrs import frozen

from fafo_build.errors import ExitCode


class Verdict(Enum):
    """What `fafo verify` concludes."""

    OK = "ok"
    BELOW = "below"
    """Some promise isn't kept; `causes` says which."""
    CANNOT_TELL = "cannot tell"
    """There is nothing to conclude from; `causes` says why."""

    @property
    def exit_code(self) -> ExitCode:
        """0, 4 or 5."""
        return {
            Verdict.OK: ExitCode.DONE,
            Verdict.BELOW: ExitCode.VERIFY_BELOW,
            Verdict.CANNOT_TELL: ExitCode.VERIFY_CANNOT_TELL,
        }[self]


class Cause(Enum):
    """Why the verdict isn't ok. The value is what `--json` says; docs/verify.md explains each."""

    HIT_RATE = "hit_rate"
    """Less came from the cache than the ceiling allows."""
    DOUBLED = "doubled"
    """An identity has more than one output."""
    LOST = "lost"
    """A queued item was retired and has no record."""
    UNDECODABLE = "undecodable"
    """Bytes in the results that are no record."""
    STALE = "stale_artifacts"
    """build/ isn't what prompts, classes and model give now."""
    NO_RESULTS = "no_results"
    """No item has an output yet, so there is no hit rate."""
    NO_CEILING = "no_ceiling"
    """No item's prefix fills a page of the cache, so nothing could have come from it."""


VERDICTS = {Cause.NO_RESULTS: Verdict.CANNOT_TELL, Cause.NO_CEILING: Verdict.CANNOT_TELL}
"""What each cause makes of the verdict; those that aren't named make it BELOW."""


@frozen
class Finding:
    """One reason, with its evidence."""

    cause: Cause
    detail: str


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
class Completeness:
    """Every item of the view has one outcome or waits; and what else there is."""

    total: int
    """Items of the view."""
    completed: int
    failed: int
    waiting: int
    """In the queue, or not produced yet."""
    superseded: int
    """Records of prompts, parameters, models or rows that have changed since."""
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


@frozen
class Report:
    """The whole verification."""

    by_class: Mapping[str, Hits]
    by_server: Mapping[str, Hits]
    """By URL; by the engine's name for one in the process."""
    completeness: Completeness
    stale: tuple[str, ...]
    """Why build/ isn't current, a line each; empty when it is."""
    findings: tuple[Finding, ...]
    min_hit_rate: float

    @property
    def hits(self) -> Hits:
        """All classes together."""
        return sum(self.by_class.values(), Hits())

    @property
    def verdict(self) -> Verdict:
        """BELOW outweighs CANNOT_TELL: a broken promise is certain."""
        found = {VERDICTS.get(finding.cause, Verdict.BELOW) for finding in self.findings}
        for verdict in (Verdict.BELOW, Verdict.CANNOT_TELL):
            if verdict in found:
                return verdict
        return Verdict.OK

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/verify.md describes."""
        hits = self.hits
        return {
            "verdict": self.verdict.value,
            "hit_rate": hits.hit_rate,
            "ceiling": hits.ceiling,
            "ratio": hits.ratio,
            "min_hit_rate": self.min_hit_rate,
            "cached_tokens": hits.cached_tokens,
            "ceiling_tokens": hits.ceiling_tokens,
            "prompt_tokens": hits.prompt_tokens,
            "by_class": {name: sums.as_json() for name, sums in self.by_class.items()},
            "by_server": {name: sums.as_json() for name, sums in self.by_server.items()},
            "causes": [{"cause": found.cause.value, "detail": found.detail} for found in self.findings],
            "completeness": self.completeness.as_json(),
            "artifacts": {"current": not self.stale, "stale": list(self.stale)},
        }
