"""Chooses among the possibilities that a cut leaves: all of them, or the most telling ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence


def mixture(counts: Sequence[int], chance: random.Random) -> list[int]:
    # Half of the survivors have most, or least, of it: a coin per sector would hardly ever give these.
    bias = chance.choice((0.1, 0.5, 0.5, 0.9))
    return [chance.randrange(1, count) if chance.random() < bias else 0 for count in counts]


def mixtures(counts: Sequence[int], limit: int, chance: random.Random) -> Iterator[Sequence[int]]:
    total = 1
    for count in counts:
        total *= count
    if total <= limit:
        yield from itertools.product(*map(range, counts))
        return
    none, full = [0] * len(counts), [count - 1 for count in counts]
    telling = [tuple(none), tuple(full)]
    # In the order in which they came about, a prefix of the changes; then all but one, and one alone.
    for at in range(1, len(counts)):
        telling.append((*full[:at], *none[at:]))
    for at in range(len(counts)):
        telling.append((*full[:at], 0, *full[at + 1 :]))
        telling.append((*none[:at], full[at], *none[at + 1 :]))
    telling = list(dict.fromkeys(telling))
    if len(telling) > limit:
        telling = telling[:2] + chance.sample(telling[2:], limit - 2)
    yield from telling
    for _ in range(limit - len(telling)):
        yield mixture(counts, chance)
