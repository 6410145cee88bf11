"""Plays a run through the cache of a server whose size is known, before it costs a night. Pure.

Not every item is played. Of each class come the first few thousand of one server's share, in the order of the
run: whole where the class is small, since only then prefixes follow each other quickly. Of a larger class the
last ones played stand for all that are left out, and the cache ages between them by as much as those would
have put into it. So the time that it takes has a bound, whatever the run's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from fafo_run.item import Ids, QueuedItem
from fafo_run.run.left import ClassLeft
from fafo_run.run.records import ceiling
from fafo_run.run.simulated_server import CacheSize
from fafo_run.run.simulation import Asked, Simulated, simulate

PLAYED = 20_000
"""Items that are played, about: a second or two."""
_WINDOWS = 2
"""A class that isn't played whole is played at least so many times as far as requests are in flight."""
_STRANGE = -(1 << 48)
"""Below this are ids of suffixes that were made up: no output of a simulation has them."""


@frozen
class Rehearsal:
    """What came out. Token sums are over the whole share of one cache, as if all of it had been played."""

    size: CacheSize
    caches: int
    """How many caches the run has: servers, times their ranks."""
    server: str
    """Whose cache was played; empty where it stands for all, since they are alike and share evenly."""
    classes: int
    """How many classes were played: the first of the run's order."""
    items: int
    """How many items were played."""
    prompt_tokens: float
    cached_tokens: float
    ceiling_tokens: float
    reached_tokens: float
    """Per item the lower of cached and ceiling."""
    below: tuple[str, ...]
    """The classes that reach less of their ceiling than asked for, the worst first."""
    needs: Simulated

    @property
    def hit_rate(self) -> float | None:
        """Cached of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ratio(self) -> float | None:
        """How much of the ceiling is reached; 0 to 1."""
        return self.reached_tokens / self.ceiling_tokens if self.ceiling_tokens else None


@frozen(eq=False)
class _Played:
    """One item of the sequence."""

    asked: Asked
    of: ClassLeft
    weight: float
    """How many items it stands for."""


def rehearse(
    classes: Sequence[ClassLeft],
    size: CacheSize,
    *,
    server: str = "",
    caches: int = 1,
    parts: int = 1,
    min_hit_rate: float = 0.0,
) -> Rehearsal:
    """Play the run, in the order of its classes, through one cache that has one of so many equal `parts` of
    each class. `server` and `caches` are said of it.
    """
    busy = [each for each in classes if each.left and each.sample]
    played = list(_sequence(busy, size, parts))
    result = simulate((one.asked for one in played), size)
    prompt = cached = most = reached = 0.0
    by_class = {each.of.name: [0.0, 0.0] for each in busy}
    for one, found in zip(played, result.cached, strict=True):
        tokens = len(one.asked.prefix) + len(one.asked.suffix)
        limit = ceiling(one.asked.prefix, tokens, size.page_size)
        prompt += one.weight * tokens
        cached += one.weight * found
        most += one.weight * limit
        reached += one.weight * min(found, limit)
        sums = by_class[one.of.of.name]
        sums[0] += one.weight * min(found, limit)
        sums[1] += one.weight * limit
    ratios = sorted((sums[0] / sums[1], name) for name, sums in by_class.items() if sums[1])
    return Rehearsal(
        size=size,
        caches=caches,
        server=server,
        classes=len({one.of.of.name for one in played}),
        items=len(played),
        prompt_tokens=prompt,
        cached_tokens=cached,
        ceiling_tokens=most,
        reached_tokens=reached,
        below=tuple(name for ratio, name in ratios if ratio < min_hit_rate),
        needs=result,
    )


def _sequence(classes: Sequence[ClassLeft], size: CacheSize, parts: int) -> Iterator[_Played]:
    window = max(_WINDOWS * size.in_flight, PLAYED // max(1, len(classes)))
    total = 0
    for each in classes:
        share = -(-round(each.left * (1 - each.sums.unsendable / each.sums.items)) // parts)
        here = min(share, window)
        if total and total + here > 2 * PLAYED:
            return
        total += here
        yield from _block(each, share, here)


def _block(each: ClassLeft, share: int, here: int) -> Iterator[_Played]:
    """Yield `here` items of a class that has `share` at this cache."""
    begin = here if here == share else here // 2
    weight = (share - begin) / (here - begin) if here > begin else 1.0
    sums = each.sums
    sendable = sums.items - sums.unsendable
    prefix = each.of.artifact.prefix
    own = (sums.prompt_tokens / sendable if sendable else 0) - len(prefix) + each.written
    for at in range(here):
        passed = round((share - here) * own) if at == begin else 0
        asked = _asked(each, at, here, prefix, passed)
        yield _Played(asked, each, weight if at >= begin else 1.0)


def _asked(each: ClassLeft, at: int, here: int, prefix: Ids, passed: int) -> Asked:
    sample, most = each.sample, each.of.sampling.max_new_tokens
    kept = len(sample)
    item: QueuedItem = sample[at * kept // here] if kept >= here else sample[at % kept]
    # What is played again must not find itself in the cache.
    suffix = item.suffix.ids if at < kept else (_STRANGE - at,) * len(item.suffix)
    written = each.written
    if each.known:
        # Outputs have all lengths around their mean; which one, the item's own number says.
        written *= 0.5 + item.seed / 2**31
    return Asked(prefix, suffix, most, max(1, min(most, round(written))), passed)
