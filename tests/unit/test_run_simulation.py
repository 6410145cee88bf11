"""The simulated cache of a server: against the stand-in's own, and in what it counts."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence

import pytest
from attrs import evolve

from fafo_run.run.simulated_server import CacheSize
from fafo_run.run.simulation import Asked, Simulated, simulate
from tests.fake_sglang import FakeSglang
from tests.playing import play, shares

PREFIX, SUFFIX, OUTPUT = 60, 12, 6
ROOMY, TIGHT = 4_000, 200
"""Tokens: all prefixes with what runs; three of them."""


def sequence(classes: int, items: int, *, mixed: bool = False, output: int = OUTPUT) -> list[Asked]:
    """Return the prompts of so many classes, one class after the other or, `mixed`, in turn."""
    rng = random.Random(classes)
    prefixes = [_ids(rng, PREFIX) for _ in range(classes)]
    order = [at for at in range(classes) for _ in range(items)]
    if mixed:
        order = [at for _ in range(items) for at in range(classes)]
    return [Asked(prefixes[at], _ids(rng, SUFFIX), output, output) for at in order]


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, 1000) for _ in range(count))


def size(tokens: int, **changes: int) -> CacheSize:
    return evolve(CacheSize(tokens=tokens, page_size=1, running=8, in_flight=8), **changes)


def observed(asked: Sequence[Asked], of: CacheSize) -> list[int]:
    """Let the stand-in for a server answer them."""

    async def go() -> list[int]:
        async with FakeSglang(
            capacity=of.tokens, page_size=of.page_size, max_running=of.running, eos_ids=()
        ) as server:
            return await play(server.url, asked, in_flight=of.in_flight, page_size=of.page_size)

    return asyncio.run(go())


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(
    ("tokens", "mixed", "fits"), [(ROOMY, True, True), (TIGHT, False, True), (TIGHT, True, False)]
)
def test_it_predicts_what_the_stand_in_serves(tokens: int, mixed: bool, fits: bool, page: int) -> None:
    asked = sequence(6, 8, mixed=mixed)
    of = size(tokens, page_size=page, in_flight=1, running=1)
    predicted = shares(simulate(asked, of).cached, asked, page)
    seen = shares(observed(asked, of), asked, page)
    assert predicted == pytest.approx(seen, abs=0.02)
    assert (predicted[1] == 1.0) is fits
    assert fits or predicted[1] < 0.8


def test_one_class_after_the_other_needs_no_room_for_all_prefixes() -> None:
    asked = sequence(20, 10)
    found = simulate(asked, size(150))
    assert shares(found.cached, asked)[1] == 1.0
    assert (found.warm_ups, found.again) == (20, 0)
    assert found.running < 8, "and so few requests run at once"


def test_prefixes_that_dont_fit_together_are_warmed_up_again_and_again() -> None:
    found = simulate(sequence(6, 8, mixed=True), size(TIGHT, in_flight=1))
    assert found.again == found.warm_ups - 6 > 10
    assert found.prefixes == 1


def test_what_is_needed_is_counted_with_shared_beginnings_once() -> None:
    first = tuple(range(3, 63))
    second = (*first[:40], *range(500, 520))
    asked = [Asked(first, (900, 901), 4, 4), Asked(second, (902, 903), 4, 4)]
    found = simulate(asked, size(ROOMY))
    assert (found.prefixes, found.prefix_tokens) == (2, 80)
    assert found.warm_ups == 2
    assert found.cached == (60, 60)


def test_requests_that_outgrow_the_memory_go_back_and_count_once() -> None:
    # The scheduler learns from short outputs to keep little free, and then come long ones.
    asked = [evolve(each, written=8 + at % 17) for at, each in enumerate(sequence(1, 300, output=100))]
    asked[-10:] = [evolve(each, written=100) for each in asked[-10:]]
    found = simulate(asked, size(500))
    assert found.retracted > 0
    assert shares(found.cached, asked)[1] == 1.0
    assert found.running_tokens + PREFIX <= 500


def test_a_cache_that_fills_up_with_a_class_forgets_all_but_its_prefix() -> None:
    def found(passed: int) -> tuple[int, ...]:
        first, second = sequence(2, 1)
        sequel = [first, second, evolve(second, passed=passed), first]
        return simulate(sequel, size(ROOMY, in_flight=1)).cached

    whole = PREFIX + SUFFIX - 1
    assert found(0)[2:] == (whole, whole)
    assert found(ROOMY)[2:] == (PREFIX, 0)


def test_nothing_to_play_is_nothing() -> None:
    assert simulate([], size(ROOMY)) == Simulated((), 0, 0, 0, 0, 0, 0, 0)


def test_a_prompt_that_never_fits_ends_all_the_same() -> None:
    asked = sequence(1, 3)
    assert len(simulate(asked, size(PREFIX // 2)).cached) == 3


def test_time_per_prompt_doesnt_grow_with_what_was_played() -> None:
    """In steps of the interpreter, not in seconds: eviction and room are kept as sums."""

    def steps(count: int) -> float:
        asked, calls = sequence(2, count // 2), 0

        def note(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(note)
        try:
            simulate(asked, size(2_000))
        finally:
            sys.setprofile(None)
        return calls / count

    assert steps(4_000) < 1.5 * steps(500)
