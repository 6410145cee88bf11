"""Runs of ids that stand in several prefixes at different places: a cache serves none of them, since it looks
from the first token on. Knows ids and names only.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from fafo_build.bake.tree import common

LEAST = 32
"""Tokens: a common run of this length is found, unless it overlaps another one."""
_SEED = LEAST // 2
"""Tokens that are looked for as they are: a run of twice that length holds a whole one."""
_MOST = 3
"""Fragments that are returned."""
_WIDTH = array("I").itemsize


@frozen
class Fragment:
    """A run of a prefix that other classes have elsewhere."""

    begin: int
    """Its ids are `prefix[begin:end]`."""
    end: int
    classes: tuple[str, ...]
    """The other classes, sorted."""


def fragments(prefix: Sequence[int], others: Mapping[str, Sequence[int]]) -> tuple[Fragment, ...]:
    """Return the longest run that `prefix` has in common with each other one after their common beginning,
    similar runs as one, those first that would spare most.
    """
    found: list[Fragment] = []
    for name in sorted(others):
        begin, end = _longest(prefix, others[name])
        if end - begin >= LEAST:
            found.append(Fragment(begin, end, (name,)))
    grouped: list[Fragment] = []
    for fragment in sorted(found, key=lambda one: (one.begin - one.end, one.classes)):
        for at, group in enumerate(grouped):
            begin, end = max(group.begin, fragment.begin), min(group.end, fragment.end)
            if 5 * (end - begin) >= 4 * (group.end - group.begin):
                classes = tuple(sorted((*group.classes, *fragment.classes)))
                grouped[at] = evolve(group, begin=begin, end=end, classes=classes)
                break
        else:
            grouped.append(fragment)
    grouped.sort(key=lambda group: ((group.begin - group.end) * len(group.classes), group.begin))
    return tuple(grouped[:_MOST])


def _longest(prefix: Sequence[int], other: Sequence[int]) -> tuple[int, int]:
    """Return begin and end of the run in `prefix`; of one that `other` has twice, its first place counts."""
    start = at = common(prefix, other)
    here, there = _packed(prefix), _packed(other)
    best = (start, start)
    while at + _SEED <= len(prefix):
        place = _find(there, here[at * _WIDTH : (at + _SEED) * _WIDTH])
        if place is None:
            at += _SEED
            continue
        end = at + common(prefix[at:], other[place:])
        before = common(prefix[start:at][::-1], other[:place][::-1])
        if end - (at - before) > best[1] - best[0]:
            best = (at - before, end)
        at = end
    return best


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _find(there: bytes, seed: bytes) -> int | None:
    """Return the first place of a seed, in ids."""
    at = there.find(seed)
    while at % _WIDTH and at >= 0:
        at = there.find(seed, at + 1)
    return at // _WIDTH if at >= 0 else None
