"""The fake engine's own promises: pure outputs, an honest cache, faults where a test asks for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Completion, Prefix, Rejected, Request, Unavailable
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.radix import RadixCache
from fafo_run.item import FailureCode

T = TypeVar("T")

PREFIX = Prefix("a" * 64, tuple(range(10, 60)))
GREEDY = Sampling(max_new_tokens=8, temperature=0.0)


def run(awaitable: Awaitable[T]) -> T:
    async def main() -> T:
        return await awaitable

    return asyncio.run(main())


def engine(**kw: Any) -> FakeEngine:
    return FakeEngine(
        declaration.Engine("default", "fake", max_running=4),
        **({"vocab_size": 1000, "context_length": 200} | kw),
    )


def request(suffix: tuple[int, ...] = (1, 2, 3), sampling: Sampling = GREEDY, seed: int = 7) -> Request:
    return Request(bytes(16), 1, PREFIX, suffix, sampling, seed)


def generate(it: FakeEngine, *requests: Request) -> list[Completion]:
    async def main() -> list[Completion]:
        await it.start()
        return await it.generate(requests)

    return run(main())


def answer(it: FakeEngine, asked: Request) -> Answer:
    (got,) = generate(it, asked)
    assert isinstance(got, Answer)
    return got


# ---- outputs


def test_another_process_would_answer_the_same() -> None:
    # The literal ids: a change of them is a change of VERSION.
    assert answer(engine(), request()).ids == (56, 966, 610, 136, 625, 412, 337, 339)
    sampled = Sampling(max_new_tokens=3, temperature=0.8)
    assert answer(engine(), request(sampling=sampled)).ids == (418, 23, 973)


def test_greedy_looks_at_neither_seed_nor_top_p_and_sampling_at_both() -> None:
    first = answer(engine(), request())
    assert answer(engine(), request(seed=8)).ids == first.ids
    assert answer(engine(), request(sampling=evolve(GREEDY, top_p=0.5))).ids == first.ids
    warm = evolve(GREEDY, temperature=1.0)
    sampled = answer(engine(), request(sampling=warm))
    assert sampled.ids != first.ids
    assert answer(engine(), request(sampling=warm, seed=8)).ids != sampled.ids
    assert answer(engine(), request(sampling=evolve(warm, top_p=0.5))).ids != sampled.ids


def test_a_smaller_max_new_tokens_gives_the_beginning() -> None:
    long = answer(engine(), request())
    short = answer(engine(), request(sampling=evolve(GREEDY, max_new_tokens=3)))
    assert short.ids == long.ids[:3]
    assert (short.finish_reason.type, len(short.ids)) == ("length", 3)


def test_ends_with_a_stop_token_and_never_has_one_inside() -> None:
    it = engine(eos_ids=(2, 999))
    asked = [request(suffix=(n,), sampling=evolve(GREEDY, max_new_tokens=40)) for n in range(60)]
    got = [one for one in generate(it, *asked) if isinstance(one, Answer)]
    assert len(got) == 60
    stopped = [one for one in got if one.finish_reason.type == "stop"]
    assert 10 < len(stopped) < 60
    assert {one.finish_reason.matched for one in stopped} == {2, 999}
    for one in got:
        assert not {2, 999} & set(one.ids[:-1])
        assert (one.ids[-1] in (2, 999)) == (one.finish_reason.type == "stop")


# ---- the cache through the engine


def test_counts_what_it_has_seen_and_never_the_whole_prompt() -> None:
    it = engine()
    assert answer(it, request()).cached_tokens == 0
    assert answer(it, request()).cached_tokens == 52  # all but the last of 53
    assert answer(it, request(suffix=(9, 9))).cached_tokens == 50


def test_outputs_are_cached_but_for_their_last_token() -> None:
    it = engine()
    first = answer(it, request())
    follow = request(suffix=(1, 2, 3, *first.ids, 5))
    assert answer(it, follow).cached_tokens == 53 + 7


def test_hits_are_whole_pages() -> None:
    it = engine(page_size=16)
    run_warm = run(_warmed(it))
    assert run_warm == [(50, 0), (50, 48)]
    assert answer(it, request()).cached_tokens == 48


async def _warmed(it: FakeEngine) -> list[tuple[int, int]]:
    await it.start()
    found = [await it.warm(PREFIX) for _ in range(2)]
    return [(one.prompt_tokens, one.cached_tokens) for one in found]


def test_requests_of_one_call_do_not_share() -> None:
    it = engine()
    got = generate(it, request(), request(), request(suffix=(4,)))
    assert [one.cached_tokens for one in got if isinstance(one, Answer)] == [0, 0, 0]


def test_a_small_cache_forgets() -> None:
    it = engine(capacity=70)
    answer(it, request())
    answer(it, evolve(request(), prefix=Prefix("b" * 64, tuple(range(500, 560)))))
    assert answer(it, request()).cached_tokens == 0
    it.cache.check_integrity()


def test_stop_forgets_and_a_stopped_engine_is_unavailable() -> None:
    async def main() -> None:
        it = engine()
        with pytest.raises(Unavailable):
            await it.generate([request()])
        await it.start()
        await it.generate([request()])
        assert it.cache.size == 53 + 7
        await it.stop()
        await it.stop()
        assert it.cache.size == 0
        with pytest.raises(Unavailable):
            await it.warm(PREFIX)

    run(main())


# ---- faults


def test_a_fault_loses_the_whole_call_and_the_cache_learns_nothing() -> None:
    it = engine(faults=lambda asked: Unavailable("gone") if asked.suffix == (2,) else None)
    with pytest.raises(Unavailable, match="gone"):
        generate(it, request(suffix=(1,)), request(suffix=(2,)))
    assert it.cache.size == 0


def test_a_rejected_fault_leaves_the_others() -> None:
    def fault(asked: Request) -> Rejected | None:
        return Rejected(asked.identity, FailureCode.REJECTED, "no") if asked.suffix == (2,) else None

    got = generate(engine(faults=fault), request(suffix=(1,)), request(suffix=(2,)), request(suffix=(3,)))
    assert [type(one) for one in got] == [Answer, Rejected, Answer]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(suffix=(1,) * 150), FailureCode.TOO_LONG),
        (request(sampling=evolve(GREEDY, max_new_tokens=148)), FailureCode.TOO_LONG),
        (request(suffix=(1000,)), FailureCode.TOKEN_OUT_OF_VOCABULARY),
        (request(suffix=(-1,)), FailureCode.TOKEN_OUT_OF_VOCABULARY),
        (evolve(request(), prefix=Prefix("c" * 64, (5, 1000))), FailureCode.TOKEN_OUT_OF_VOCABULARY),
        (evolve(request(), prefix=Prefix("d" * 64, ()), suffix=()), FailureCode.REJECTED),
    ],
)
def test_refuses_what_no_model_could_take(asked: Request, code: FailureCode) -> None:
    (got,) = generate(engine(), asked)
    assert isinstance(got, Rejected)
    assert got.code is code


def test_what_just_fits_is_answered() -> None:
    assert isinstance(generate(engine(), request(sampling=evolve(GREEDY, max_new_tokens=147)))[0], Answer)
    assert isinstance(generate(engine(), request(suffix=(0, 999)))[0], Answer)


# ---- the radix cache against the plain thing: a set of all beginnings


sequences = st.lists(st.lists(st.integers(0, 2), max_size=12).map(tuple), max_size=25)


@given(sequences, st.integers(1, 4))
def test_radix_finds_the_longest_beginning_in_whole_pages(inserted: list[tuple[int, ...]], page: int) -> None:
    cache, plain = RadixCache(page_size=page), {()}
    for ids in inserted:
        longest = max(n for n in range(0, len(ids) + 1, page) if ids[:n] in plain)
        assert cache.match(ids) == longest
        cache.insert(ids)
        plain |= {ids[:n] for n in range(0, len(ids) + 1, page)}
        cache.check_integrity()
    assert cache.size == page * (len(plain) - 1)


@given(sequences, st.integers(1, 3), st.integers(0, 20))
def test_radix_never_exceeds_its_capacity_and_never_invents(
    inserted: list[tuple[int, ...]], page: int, capacity: int
) -> None:
    cache, seen = RadixCache(page_size=page, capacity=capacity), {()}
    for ids in inserted:
        assert ids[: cache.match(ids)] in seen
        cache.insert(ids)
        seen |= {ids[:n] for n in range(len(ids) + 1)}
        cache.check_integrity()
        assert cache.size <= capacity


def test_radix_forgets_the_least_recently_used() -> None:
    cache = RadixCache(capacity=9)
    for ids in ((1, 1, 1), (2, 2, 2), (3, 3, 3)):
        cache.insert(ids)
    assert cache.match((1, 1, 1)) == 3
    cache.insert((4, 4, 4))
    assert [cache.match((n,) * 3) for n in (1, 2, 3, 4)] == [3, 0, 3, 3]


def test_radix_integrity_check_sees_damage() -> None:
    cache = RadixCache()
    rng = random.Random(1)
    for _ in range(20):
        cache.insert(tuple(rng.choices(range(3), k=10)))
    cache.check_integrity()
    cache._size += 1
    with pytest.raises(RuntimeError):
        cache.check_integrity()


def test_radix_refuses_a_page_of_nothing() -> None:
    with pytest.raises(ValueError, match="page_size"):
        RadixCache(page_size=0)
