"""Which part of a run is played through a simulated cache, and what the rest counts as."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from fafo_run.item import FailureCode, pack_ids
from fafo_run.run.left import ClassLeft, Sums
from fafo_run.run.rehearsal import PLAYED, rehearse
from fafo_run.run.simulated_server import CacheSize

PREFIX, SUFFIX, OUTPUT = 40, 10, 6
SIZE = CacheSize(tokens=2_000, page_size=1, running=8, in_flight=16)


def of_class(
    number: int, items: int, *, sample: int = 50, known: bool = False, unsendable: int = 0
) -> ClassLeft:
    """Return a class of so many items that are left, of which some were encoded."""
    rng = random.Random(number)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 40_000) for _ in range(count))

    of: Any = SimpleNamespace(
        name=f"c{number}",
        artifact=SimpleNamespace(prefix=ids(PREFIX)),
        sampling=SimpleNamespace(max_new_tokens=OUTPUT),
    )
    encoded: list[Any] = [
        SimpleNamespace(suffix=pack_ids(ids(SUFFIX)), seed=rng.getrandbits(31))
        for _ in range(min(sample, items))
    ]
    found = ClassLeft(of, items, written=OUTPUT / 2 if known else OUTPUT, known=known, sample=encoded)
    found.sums = Sums(
        items=len(encoded) + unsendable,
        failures=Counter({FailureCode.TOO_LONG: unsendable} if unsendable else {}),
        prompt_tokens=len(encoded) * (PREFIX + SUFFIX),
    )
    return found


def test_small_classes_are_played_whole() -> None:
    found = rehearse([of_class(number, 20) for number in range(5)], SIZE)
    assert (found.items, found.classes, found.needs.warm_ups) == (100, 5, 5)
    assert found.prompt_tokens == 100 * (PREFIX + SUFFIX)
    assert (found.ratio, found.below) == (1.0, ())


@pytest.mark.parametrize("known", [False, True])
def test_what_is_played_of_a_large_class_stands_for_all_of_it(known: bool) -> None:
    found = rehearse([of_class(1, 5_000_000, known=known), of_class(2, 10)], SIZE)
    assert found.items <= PLAYED
    assert found.prompt_tokens == pytest.approx(5_000_010 * (PREFIX + SUFFIX))
    assert found.ceiling_tokens == pytest.approx(5_000_010 * PREFIX)
    assert (found.ratio, found.needs.warm_ups) == (1.0, 2)
    # A sample that is played again and again doesn't find itself: what was made up shares nothing.
    assert found.hit_rate == pytest.approx(PREFIX / (PREFIX + SUFFIX), abs=0.001)


def test_the_time_that_it_takes_has_a_bound() -> None:
    many = [of_class(number, 1_000, sample=4) for number in range(3_000)]
    found = rehearse(many, SIZE)
    assert found.items <= 2 * PLAYED
    assert found.classes < 3_000


def test_equal_caches_share_a_class() -> None:
    one, four = (rehearse([of_class(1, 4_000)], SIZE, parts=parts) for parts in (1, 4))
    assert four.prompt_tokens * 4 == one.prompt_tokens
    assert four.needs.warm_ups == one.needs.warm_ups == 1


def test_what_cant_be_sent_and_what_is_done_isnt_played() -> None:
    done = of_class(2, 30)
    done.done = 30
    found = rehearse([of_class(1, 100, unsendable=50), done], SIZE)
    assert (found.items, found.classes) == (50, 1)


def test_a_class_below_is_named_the_worst_first() -> None:
    # One prompt and its output fit, and no prefix outlives the next class's.
    tight = CacheSize(tokens=PREFIX // 2, page_size=1, running=8, in_flight=16)
    found = rehearse([of_class(number, 6) for number in range(3)], tight, min_hit_rate=0.99)
    assert set(found.below) == {"c0", "c1", "c2"}
    assert found.ratio is not None and found.ratio < 0.99
