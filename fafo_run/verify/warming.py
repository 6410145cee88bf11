"""Accounts for the warm-ups of a run: what they took from the cache, and what they could have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

from fafo_build.bake.tree import common
from fafo_run.item import Ids
from fafo_run.verify.lives import Life
from fafo_run.verify.sums import WarmUps


def warm_ups(found: Iterable[Life], prefixes: Mapping[str, Ids]) -> WarmUps:
    """Return the sums over the warm-ups of these `prefixes`, which are given by artifact.

    A process has an empty cache at its first warm-up, unless somebody used it before; then more comes from
    it than could be expected, as with items.
    """

    @cache
    def shared(one: str, other: str) -> int:
        return common(prefixes[one], prefixes[other])

    count = prompt = cached = ceiling = 0
    whys: Counter[str] = Counter()
    for life in found:
        ranks: dict[int, set[str]] = {}
        for event in life.warmed:
            if event.artifact not in prefixes:
                continue
            before = ranks.setdefault(event.rank, set())
            most = max((shared(event.artifact, other) for other in before), default=0)
            count += 1
            prompt += event.prompt_tokens
            cached += event.cached_tokens
            # Whole pages, and never the last token of the prompt.
            ceiling += min(most, event.prompt_tokens - 1) // life.page_size * life.page_size
            whys[event.why] += 1
            before.add(event.artifact)
    return WarmUps(count, prompt, cached, ceiling, dict(whys))
