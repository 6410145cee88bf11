"""The nouns of a forecast: what a run would do, take and need, and what speaks against it. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from attrs import asdict, frozen

from fafo_build.bake.tree import PrefixTree
from fafo_run.run.caches import ServerCache
from fafo_run.run.left import ClassLeft, Left
from fafo_run.run.rehearsal import Rehearsal


@frozen
class DiskNeed:
    """What a run would write. In bytes; estimates where only a sample was encoded."""

    queue: int
    """The queue at its fullest: its depth limit, and a segment of which something still waits."""
    results: int
    """What is left, at the longest outputs, with hints and index."""
    expected: int
    """The same at the expected outputs."""
    free: int
    """What the disk of the run's folder has now."""

    @property
    def needed(self) -> int:
        """Queue and results together."""
        return self.queue + self.results

    @property
    def fits(self) -> bool:
        """Whether there is room for the longest outputs."""
        return self.needed <= self.free


@frozen
class Concern:
    """Something that a person should know before the run."""

    level: Literal["error", "warning"]
    """`error`: the run would end early. `warning`: it would do worse than asked for."""
    text: str
    cure: str = ""


@frozen
class Forecast:
    """What `fafo plan` says."""

    run: str
    engine: str
    kind: str
    left: Left
    trees: tuple[PrefixTree, ...]
    disk: DiskNeed
    servers: tuple[ServerCache, ...]
    """What is known of each server's cache; none where the engine is in the process."""
    page_size: int
    """Of the cache, in tokens, the largest where they differ: what the ceiling is computed with."""
    rehearsal: Rehearsal | None
    """None where no cache size is known, or the cache is off."""
    min_hit_rate: float
    """What is asked for, of the ceiling."""
    cache_off: bool
    """Whether a server computes every prompt whole."""
    warnings: tuple[Concern, ...]

    @property
    def ratio(self) -> float | None:
        """How much of the ceiling is predicted at the fullest cache; None when that isn't known."""
        if self.cache_off:
            return 0.0
        return self.rehearsal.ratio if self.rehearsal is not None else None

    @property
    def below(self) -> bool:
        """Whether less is predicted than was asked for."""
        return self.ratio is not None and self.ratio < self.min_hit_rate

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/commands.md describes."""
        left = self.left
        totals = [class_as_json(each) for each in left.classes]
        return {
            "run": self.run,
            "engine": {"name": self.engine, "kind": self.kind},
            "items": {name: sum(each[name] for each in totals) for name in ("total", "done", "left")}
            | {"unsendable": round(sum(each.sums.unsendable * each.scale for each in left.classes))},
            "encoded": left.encoded,
            "exact": left.exact,
            "prompt_tokens": sum(each["prompt_tokens"] for each in totals),
            "output_tokens": {
                name: sum(each["output_tokens"][name] for each in totals) for name in ("most", "expected")
            },
            "lanes": {str(lane): found for lane, found in lanes(left).items()},
            "by_class": {each.of.name: told for each, told in zip(left.classes, totals, strict=True)},
            "page_size": self.page_size,
            "ceiling": ceiling(left),
            "ceiling_tokens": sum(each["ceiling_tokens"] for each in totals),
            "disk": asdict(self.disk) | {"needed": self.disk.needed, "fits": self.disk.fits},
            "servers": [asdict(server) for server in self.servers],
            "cache_off": self.cache_off,
            "rehearsal": None if self.rehearsal is None else rehearsal_as_json(self.rehearsal),
            "min_hit_rate": self.min_hit_rate,
            "ratio": self.ratio,
            "warnings": [asdict(warning) for warning in self.warnings],
        }


def scaled(each: ClassLeft, value: float) -> int:
    """Return what a sum over the encoded items of a class makes for all that are left of it."""
    return round(value * each.scale)


def ceiling(left: Left) -> float | None:
    """Return the share of the prompt tokens that a perfect cache would serve; None without a prompt."""
    prompt = sum(each.sums.prompt_tokens * each.scale for each in left.classes)
    return sum(each.sums.ceiling_tokens * each.scale for each in left.classes) / prompt if prompt else None


def lanes(left: Left) -> Mapping[int, dict[str, int]]:
    """Return items and tokens of each lane, the shortest first."""
    items: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for each in left.classes:
        for lane, count in each.sums.lanes.items():
            items[lane] += scaled(each, count)
            tokens[lane] += scaled(each, each.sums.lane_tokens[lane])
    return {lane: {"items": items[lane], "prompt_tokens": tokens[lane]} for lane in sorted(items)}


def class_as_json(each: ClassLeft) -> dict[str, Any]:
    """Return what is told of one class."""
    sums = each.sums
    sendable = scaled(each, sums.items - sums.unsendable)
    return {
        "total": each.total,
        "done": each.done,
        "left": each.left,
        "prefix_tokens": len(each.of.artifact.prefix),
        "prompt_tokens": scaled(each, sums.prompt_tokens),
        "ceiling_tokens": scaled(each, sums.ceiling_tokens),
        "output_tokens": {
            "most": sendable * each.of.sampling.max_new_tokens,
            "expected": round(sendable * each.written),
            "known": each.known,
        },
    }


def rehearsal_as_json(played: Rehearsal) -> dict[str, Any]:
    """Return what is told of a simulated run."""
    needs = played.needs
    return {
        "hit_rate": played.hit_rate,
        "ratio": played.ratio,
        "below": list(played.below),
        "caches": played.caches,
        "server": played.server or None,
        "cache_tokens": played.size.tokens,
        "running_limit": played.size.running,
        "in_flight": played.size.in_flight,
        "classes": played.classes,
        "items": played.items,
        "warm_ups": needs.warm_ups,
        "warm_ups_again": needs.again,
        "retracted": needs.retracted,
        "prefixes": needs.prefixes,
        "prefix_tokens": needs.prefix_tokens,
        "running": needs.running,
        "running_tokens": needs.running_tokens,
    }
