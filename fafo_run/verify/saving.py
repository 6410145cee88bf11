"""Measures what the cache saves: the same items once with a warm prefix, and once in namespaces of their own,
where nothing is shared. One request at a time at each server; nothing is recorded.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from fafo_build.errors import EngineError, Problem
from fafo_run.engines.base import Answer, Capabilities, Engine
from fafo_run.run import preflight
from fafo_run.run.plan import RunPlan
from fafo_run.run.view import ClassView
from fafo_run.verify.probing import Prompt, UnansweredError, answer, one_token, opened, prompts, request


@frozen
class Saving:
    """Sums over items that were answered in both ways."""

    items: int = 0
    cached_seconds: float = 0.0
    """With the prefix in the cache; all items together."""
    uncached_seconds: float = 0.0
    cached_tokens: int = 0
    """Prompt tokens from the cache, with the prefix in it."""
    uncached_tokens: int = 0
    """The same without: 0, or the namespaces don't hold."""

    def __add__(self, other: Saving) -> Saving:
        return Saving(
            self.items + other.items,
            self.cached_seconds + other.cached_seconds,
            self.uncached_seconds + other.uncached_seconds,
            self.cached_tokens + other.cached_tokens,
            self.uncached_tokens + other.uncached_tokens,
        )

    @property
    def ratio(self) -> float | None:
        """How many times longer an item takes without the cache."""
        return self.uncached_seconds / self.cached_seconds if self.cached_seconds else None

    def as_json(self) -> dict[str, Any]:
        """Return what docs/verify.md describes."""
        return {
            "items": self.items,
            "seconds_per_item": self.cached_seconds / self.items if self.items else None,
            "seconds_per_item_without": self.uncached_seconds / self.items if self.items else None,
            "ratio": self.ratio,
            "cached_tokens": self.cached_tokens,
            "cached_tokens_without": self.uncached_tokens,
            "saved_tokens": self.cached_tokens - self.uncached_tokens,
        }


@frozen
class SavingReport:
    """The comparison of all classes."""

    by_class: Mapping[str, Saving]
    by_server: Mapping[str, Saving]

    @property
    def total(self) -> Saving:
        """All classes together."""
        return sum(self.by_class.values(), Saving())

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/verify.md describes."""
        return {
            **self.total.as_json(),
            "by_class": {name: found.as_json() for name, found in self.by_class.items()},
            "by_server": {name: found.as_json() for name, found in self.by_server.items()},
        }


async def measure(plan: RunPlan, count: int) -> SavingReport:
    """Send `count` items of each class in both ways, shared out among the servers, which work at once.

    Raises `EngineError` when a server can't be used or doesn't answer, `SourceError` when a source can't be
    read.
    """
    if plan.engine.kind != "sglang":
        raise EngineError(
            Problem(
                f"an engine of kind {plan.engine.kind} has no namespaces to keep requests apart by",
                file="fafo.toml",
                cure='ask one of kind = "sglang"; choose it with --engine',
            )
        )
    work = [(of, prompts(plan.view, of, count)) for of in plan.view.classes]
    async with opened(plan) as engines:
        started = [(engine, await engine.start()) for engine in engines]
        for _, limits in started:
            preflight.check(plan.view, limits)
        found = await asyncio.gather(
            *(
                _measure(engine, limits, [(of, found[at :: len(started)]) for of, found in work])
                for at, (engine, limits) in enumerate(started)
            )
        )
    return SavingReport(
        {of.name: sum((server[of.name] for server in found), Saving()) for of, _ in work},
        {
            limits.server: sum(server.values(), Saving())
            for (_, limits), server in zip(started, found, strict=True)
        },
    )


async def _measure(
    engine: Engine, limits: Capabilities, work: Sequence[tuple[ClassView, Sequence[Prompt]]]
) -> dict[str, Saving]:
    try:
        return {of.name: await _measure_class(engine, limits, of, items) for of, items in work}
    except UnansweredError as error:
        raise EngineError.of(
            f"no comparison: {error}", cure="see to the server, then compare again"
        ) from error


async def _measure_class(
    engine: Engine, limits: Capabilities, of: ClassView, items: Sequence[Prompt]
) -> Saving:
    """Send each item in both ways, in turns, and every other time the other way first.

    Both ways are in namespaces that nobody has used: what runs have left in the cache helps neither.
    """
    shared = f"fafo-compare-{uuid.uuid4().hex}"
    if items and of.artifact.prefix:
        await answer(engine, limits, one_token(of, (), namespace=shared))
    total = Saving()
    for at, item in enumerate(items):
        ways: dict[str, Answer] = {}
        for namespace in (shared, f"{shared}-{at}")[:: 1 if at % 2 else -1]:
            ways[namespace] = await answer(engine, limits, request(of, item, namespace=namespace))
        cached, uncached = ways[shared], ways[f"{shared}-{at}"]
        total += Saving(1, cached.seconds, uncached.seconds, cached.cached_tokens, uncached.cached_tokens)
    return total
