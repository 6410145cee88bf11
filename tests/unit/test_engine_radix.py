"""What a radix cache keeps while somebody holds it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fafo_run.engines.radix import Hold, RadixCache

_ids = st.lists(st.integers(0, 2), max_size=10).map(tuple)
_steps = st.lists(st.tuples(st.sampled_from(["insert", "hold", "release", "evict"]), _ids), max_size=40)


@given(_steps, st.integers(1, 3))
def test_what_is_held_stays_whatever_else_happens(
    steps: list[tuple[str, tuple[int, ...]]], page: int
) -> None:
    cache, held = RadixCache(page_size=page), list[tuple[Hold, tuple[int, ...]]]()
    for step, ids in steps:
        match step:
            case "insert":
                cache.insert(ids)
            case "hold":
                held.append((cache.hold(ids), ids[: cache.match(ids)]))
            case "release" if held:
                cache.release(held.pop(len(ids) % len(held))[0])
            case "evict":
                before = cache.size
                assert cache.evict(len(ids)) == before - cache.size
        cache.check_integrity()
        for _, kept in held:
            assert cache.match(kept) == len(kept)
    assert cache.held == len({kept[:end] for _, kept in held for end in range(1, len(kept) + 1)})
    for hold, _ in held:
        cache.release(hold)
    assert cache.held == 0
    cache.evict(cache.size)
    assert cache.size == 0


def test_eviction_takes_the_oldest_and_passes_what_is_held_over() -> None:
    cache = RadixCache()
    for ids in ((1, 1, 1), (2, 2, 2), (3, 3, 3)):
        cache.insert(ids)
    hold = cache.hold((1, 1, 9))
    assert cache.held == 2
    assert cache.evict(1) == 1, "the end of the first sequence isn't held, and is the oldest"
    assert cache.evict(100) == 6
    assert (cache.match((1, 1, 1)), cache.size) == (2, 2)
    cache.release(hold)
    assert cache.evict(1) == 2


def test_what_is_held_may_be_more_than_the_capacity() -> None:
    cache = RadixCache(capacity=4)
    cache.insert((1, 2, 3, 4))
    cache.hold((1, 2, 3, 4))
    cache.insert((5, 6))
    cache.check_integrity()
    assert (cache.size, cache.match((1, 2, 3, 4)), cache.match((5,))) == (4, 4, 0)


def test_the_integrity_check_sees_a_parent_that_isnt_held() -> None:
    cache = RadixCache()
    cache.insert((1, 2))
    cache.insert((1, 3))
    hold = cache.hold((1, 2))
    assert hold.node.parent is not None
    hold.node.parent.holds = 0
    with pytest.raises(RuntimeError):
        cache.check_integrity()
