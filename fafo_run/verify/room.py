"""Whether a server's cache has room for what a run keeps in it. Pure."""

from __future__ import annotations

from attrs import frozen

from fafo_run.run.placement import together
from fafo_run.verify.known import Known
from fafo_run.verify.lives import Life
from fafo_run.verify.sums import Pair


@frozen
class Room:
    """What a cache has to hold, against what it can."""

    small: bool
    told: str
    """The numbers, for people."""


def room_of(known: Known, server: str) -> Room | None:
    """Return whether a rank of the server has room for its prefixes; None when it doesn't say.

    Beside them it holds the prompts and outputs that it works on, and these come first.
    """
    own = known.at(server)
    held = [life.started.cache_tokens for life in own if life.started and life.started.cache_tokens]
    if not held:
        return None
    count, prefixes = max((_warm(known, life) for life in own), key=lambda found: found[1], default=(0, 0))
    beside = [pair for pair in known.hits if pair[1] == server]
    running = max(life.started.running for life in own if life.started)
    prompts = running * max((_beside(known, pair) for pair in beside), default=0)
    return Room(
        prefixes + prompts > min(held),
        f"its cache holds {min(held)} tokens; {count} prefixes have {prefixes}, and {running} prompts at a "
        f"time with their outputs up to {prompts} more",
    )


def _warm(known: Known, life: Life) -> tuple[int, int]:
    """Return how many prefixes were warmed on that rank of a process that had most, and how many tokens a
    cache needs for them: once for what they share."""
    ranks: dict[int, set[str]] = {}
    for event in life.warmed:
        ranks.setdefault(event.rank, set()).add(event.artifact)
    found = [[known.prefixes.get(name, ()) for name in names] for names in ranks.values()]
    return max(((len(ids), together(ids)) for ids in found), key=lambda rank: rank[1], default=(0, 0))


def _beside(known: Known, pair: Pair) -> int:
    """Return how many tokens an item has beside its prefix, on average, its output included."""
    hits = known.hits[pair]
    if not hits.items:
        return 0
    prefix = known.prefixes.get(known.artifacts.get(pair[0], ""), ())
    return max(0, -(-hits.prompt_tokens // hits.items) - len(prefix)) + known.outputs.get(pair[0], 0)
