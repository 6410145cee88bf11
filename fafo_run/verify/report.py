"""The nouns of a verification: what was counted, what was found, and the verdict. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import frozen

from fafo_build.errors import ExitCode
from fafo_run.verify.counters import Comparison
from fafo_run.verify.sums import Completeness, Hits, WarmUps


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
    COUNTERS = "counters"
    """A server counted fewer tokens than the run had from it: one of the two counts is wrong."""
    NO_ANSWER = "no_answer"
    """A server that was to be probed doesn't answer, refuses what it is asked, or can't be used."""
    DRIFT = "drift"
    """Prompts, tokenizer or model aren't the same on both sides, or weren't for all of the run."""

    # Why a hit rate is below, or why there is none. They explain one of the above, and decide nothing.
    RADIX_OFF = "radix_off"
    """The server was started without its prefix cache."""
    EVICTED = "evicted"
    """The cache dropped prefixes to make room for others."""
    FLUSHED = "flushed"
    """The cache lost prefixes without need for room: somebody emptied it."""
    COLD_RESTART = "cold_restart"
    """The server came back as another process, with an empty cache."""
    PAGE_SIZE = "page_size"
    """A cache holds whole pages, and what is beyond the last whole one of a prefix is computed each time."""
    ANOTHER_TENANT = "another_tenant"
    """The server counted more than the run had from it: somebody else uses its cache, too."""
    NOT_EXPLAINED = "not_explained"
    """Nothing that is known of the servers explains it."""


VERDICTS = {
    Cause.HIT_RATE: Verdict.BELOW,
    Cause.DOUBLED: Verdict.BELOW,
    Cause.LOST: Verdict.BELOW,
    Cause.UNDECODABLE: Verdict.BELOW,
    Cause.STALE: Verdict.BELOW,
    Cause.COUNTERS: Verdict.BELOW,
    Cause.DRIFT: Verdict.BELOW,
    Cause.NO_RESULTS: Verdict.CANNOT_TELL,
    Cause.NO_CEILING: Verdict.CANNOT_TELL,
    Cause.NO_ANSWER: Verdict.CANNOT_TELL,
}
"""What each cause makes of the verdict; those that aren't here only explain."""


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Return what findings come to. BELOW outweighs CANNOT_TELL: a broken promise is certain."""
    found = {VERDICTS.get(finding.cause, Verdict.OK) for finding in findings}
    for verdict in (Verdict.BELOW, Verdict.CANNOT_TELL):
        if verdict in found:
            return verdict
    return Verdict.OK


@frozen
class Finding:
    """One reason, with its evidence."""

    cause: Cause
    detail: str
    """Class, server and numbers, in one line."""

    def as_json(self) -> dict[str, str]:
        """Return both."""
        return {"cause": self.cause.value, "detail": self.detail}


@frozen
class Report:
    """The whole verification."""

    by_class: Mapping[str, Hits]
    by_server: Mapping[str, Hits]
    """By URL; by the engine's name for one in the process."""
    by_hour: Mapping[str, Hits]
    """By the hour in which items were sent, in UTC: `2026-11-30T15:00Z`; the oldest first."""
    warm_ups: WarmUps
    counters: Mapping[str, Comparison]
    """By URL: the servers' own counts beside the run's."""
    completeness: Completeness
    stale: tuple[str, ...]
    """Why build/ isn't current, a line each; empty when it is."""
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    """What was seen of the servers and broke no promise."""
    events: int
    """Lines of evidence that were read."""
    unreadable: int
    """Lines of evidence that a crash tore."""
    min_hit_rate: float

    @property
    def hits(self) -> Hits:
        """All classes together."""
        return sum(self.by_class.values(), Hits())

    @property
    def sent(self) -> Hits:
        """Items and warm-ups together: all that reached a server and was answered."""
        warm = self.warm_ups
        return self.hits + Hits(warm.count, warm.prompt_tokens, warm.cached_tokens, warm.ceiling_tokens)

    @property
    def verdict(self) -> Verdict:
        """What the findings come to."""
        return verdict_of(self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/verify.md describes."""
        hits, sent = self.hits, self.sent
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
            "by_hour": {hour: sums.as_json() for hour, sums in self.by_hour.items()},
            "warm_ups": self.warm_ups.as_json(),
            "sent": {
                "requests": sent.items,
                "prompt_tokens": sent.prompt_tokens,
                "cached_tokens": sent.cached_tokens,
                "hit_rate": sent.hit_rate,
                "ceiling": sent.ceiling,
            },
            "counters": {url: found.as_json() for url, found in self.counters.items()},
            "causes": [found.as_json() for found in self.findings],
            "notes": [found.as_json() for found in self.notes],
            "completeness": self.completeness.as_json(),
            "artifacts": {"current": not self.stale, "stale": list(self.stale)},
            "evidence": {"events": self.events, "unreadable": self.unreadable},
        }
