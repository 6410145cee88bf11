"""What every engine promises (`fafo_run/engines/base.py`), held against each of them.

The same promises hold for a server that is made for these tests and for the real one, so the first is a fair
stand-in where a test needs a fault.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterator, Sequence

from attrs import evolve

from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Completion, Prefix, Rejected, Request, WarmUp
from fafo_run.item import FailureCode, FinishReason, Ids
from tests.engine_harness import Harness, Opened

GREEDY = Sampling(max_new_tokens=6, temperature=0.0)
SAMPLED = Sampling(max_new_tokens=8, temperature=1.0)


def request(
    prefix: Prefix, suffix: Ids = (5, 6, 7), sampling: Sampling = GREEDY, *, name: int = 0, seed: int = 1
) -> Request:
    return Request(name.to_bytes(16, "little"), 1, prefix, suffix, sampling, seed)


def run(main: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 120))


async def ask(opened: Opened, requests: Sequence[Request]) -> list[Completion]:
    """Send as many at once as the engine takes, and so on till all are answered."""
    step, completions = opened.capabilities.batch, []
    for start in range(0, len(requests), step):
        completions += await opened.engine.generate(requests[start : start + step])
    return completions


async def ask_one(opened: Opened, asked: Request) -> Answer:
    (answer,) = await opened.engine.generate([asked])
    assert isinstance(answer, Answer), answer
    return answer


# ---- what it says of itself


def test_says_what_it_is(harness: Harness) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            said = it.capabilities
            assert said.engine == harness.spec.kind
            assert said.version
            assert said.model
            assert said.vocab_size == harness.vocab_size
            assert 0 < said.context_length <= harness.context_length
            assert said.page_size == harness.page_size
            assert said.prefix_cache is True
            assert said.batch >= 1
            assert said.concurrency >= 1

    run(main())


# ---- answers


def test_completions_come_in_the_order_of_the_requests(
    harness: Harness, new_prefix: Iterator[Prefix]
) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            alone = [await ask_one(it, request(prefix, (n, n + 1), name=n)) for n in range(10, 17)]
            together = await ask(it, [request(prefix, (n, n + 1), name=n) for n in range(10, 17)])
            assert [one.identity for one in together] == [one.identity for one in alone]
            assert [one.ids for one in together if isinstance(one, Answer)] == [one.ids for one in alone]
            assert len({one.ids for one in alone}) > 1

    run(main())


def test_calls_may_be_under_way_together(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            names = range(it.capabilities.concurrency)
            got = await asyncio.gather(
                *(it.engine.generate([request(prefix, (n + 10,), name=n)]) for n in names)
            )
            assert [one.identity for (one,) in got] == [n.to_bytes(16, "little") for n in names]

    run(main())


def test_an_answer_is_whole(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            asked = request(next(new_prefix), name=77)
            answer = await ask_one(it, asked)
            assert answer.identity == asked.identity
            assert answer.ids and all(0 <= token < it.capabilities.vocab_size for token in answer.ids)
            assert answer.finish_reason.type in ("stop", "length")
            assert answer.server in ((it.capabilities.server,))
            assert answer.started > 1e9
            assert answer.seconds >= 0

    run(main())


def test_greedy_repeats_and_looks_at_no_seed(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            answers = [await ask_one(it, request(prefix, seed=seed)) for seed in (1, 1, 2)]
            assert len({answer.ids for answer in answers}) == 1

    run(main())


def test_a_seed_decides_what_is_sampled(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            one, same, other = [
                await ask_one(it, request(prefix, sampling=SAMPLED, seed=seed)) for seed in (1, 1, 2)
            ]
            assert other.ids != one.ids
            if harness.seeded:
                assert same.ids == one.ids

    run(main())


def test_company_does_not_change_a_sample(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            asked = [request(prefix, (n,), SAMPLED, name=n, seed=n) for n in range(4)]
            alone = [await ask_one(it, one) for one in asked]
            together = await ask(it, list(reversed(asked)))
            assert all(isinstance(one, Answer) for one in together)
            if harness.seeded:
                assert [one.ids for one in reversed(together) if isinstance(one, Answer)] == [
                    one.ids for one in alone
                ]

    run(main())


def test_narrow_sampling_parameters_reach_the_model(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            for sampling in (
                evolve(SAMPLED, top_k=3),
                evolve(SAMPLED, top_p=0.5),
                evolve(SAMPLED, min_p=0.2),
                evolve(SAMPLED, temperature=0.3, top_k=50, top_p=0.9, min_p=0.01),
            ):
                await ask_one(it, request(prefix, sampling=sampling))

    run(main())


def test_ends_after_max_new_tokens(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            long = await ask_one(it, request(prefix))
            for most in (1, 3):
                answer = await ask_one(it, request(prefix, sampling=evolve(GREEDY, max_new_tokens=most)))
                assert answer.ids == long.ids[:most]
                assert answer.finish_reason.type == "length"
                assert answer.finish_reason.matched is None

    run(main())


def test_ends_at_a_stop_token_which_is_the_last_id(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        prefix = next(new_prefix)
        async with harness.opened() as it:
            free = (await ask_one(it, request(prefix))).ids
        stop = free[2]
        async with harness.opened(eos_ids=(stop,)) as it:
            answer = await ask_one(it, request(prefix))
            assert answer.finish_reason.type == "stop"
            assert answer.finish_reason.matched == stop
            assert answer.ids.index(stop) == len(answer.ids) - 1 <= 2

    run(main())


def test_ends_at_a_stop_token_of_the_class(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            free = (await ask_one(it, request(prefix))).ids
            stop = evolve(GREEDY, stop_token_ids=(free[2], harness.vocab_size - 1))
            answer = await ask_one(it, request(prefix, sampling=stop))
            assert answer.finish_reason.type == "stop"
            assert answer.finish_reason.matched == answer.ids[-1]
            assert answer.ids[-1] in stop.stop_token_ids
            assert len(answer.ids) <= 3
            assert (await ask_one(it, request(prefix))).ids == free

    run(main())


def test_penalties_reach_the_model(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            plain = evolve(GREEDY, max_new_tokens=60)
            # Turned round, so that they show with a model that never repeats itself.
            wishes = (
                plain,
                evolve(plain, frequency_penalty=-2.0),
                evolve(plain, presence_penalty=-2.0),
                evolve(plain, repetition_penalty=0.01),
            )
            answers = [await ask_one(it, request(prefix, sampling=sampling)) for sampling in wishes * 2]
            assert all(answer.ids != answers[0].ids for answer in answers[1:4])
            assert [answer.ids for answer in answers[:4]] == [answer.ids for answer in answers[4:]]

    run(main())


def test_ends_at_a_text_or_refuses_to(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            free = await ask_one(it, request(prefix))
            if harness.text is None:
                assert it.capabilities.unable["stop"]
                await _refused(
                    it, request(prefix, sampling=evolve(GREEDY, stop=("\n",))), FailureCode.REJECTED
                )
                return
            stop = harness.text(free.ids[2:3]).strip()
            answer = await ask_one(it, request(prefix, sampling=evolve(GREEDY, stop=("no such text", stop))))
            assert answer.finish_reason == FinishReason("stop", stop)
            assert answer.ids == free.ids[: len(answer.ids)]
            assert stop in harness.text(answer.ids)
            assert stop not in harness.text(answer.ids[:-1])

    run(main())


FORMED = (
    (evolve(SAMPLED, regex=r"(yes|no), [0-9]{2}"), r"(yes|no), [0-9]{2}"),
    (evolve(GREEDY, ebnf='root ::= "red" | "green"', max_new_tokens=20), "red|green"),
    (
        evolve(SAMPLED, json_schema='{"type":"object","properties":{"b":{"enum":[1]},"a":{"enum":[2]}},'
               '"required":["b","a"],"additionalProperties":false}', max_new_tokens=200),
        r'\{\s*"b"\s*:\s*1\s*,\s*"a"\s*:\s*2\s*\}',
    ),
)  # fmt: skip


def test_gives_an_output_its_form_or_refuses_to(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened(eos_ids=harness.eos_ids) as it:
            prefix = next(new_prefix)
            for (sampling, form), key in zip(FORMED, ("regex", "ebnf", "json_schema"), strict=True):
                if key in it.capabilities.unable:
                    await _refused(it, request(prefix, sampling=sampling), FailureCode.REJECTED)
                    continue
                assert harness.text is not None
                assert await it.engine.refuses(sampling) is None
                answer = await ask_one(it, request(prefix, sampling=sampling))
                assert answer.finish_reason.type == "stop", harness.text(answer.ids)
                ended = answer.ids[-1] in harness.eos_ids
                assert re.fullmatch(form, harness.text(answer.ids[:-1] if ended else answer.ids))
                assert await it.engine.refuses(evolve(sampling, **{key: "(((["}))
            assert await it.engine.refuses(GREEDY) is None

    run(main())


# ---- the cache


def test_a_warm_prefix_is_served_from_the_cache(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix, page = next(new_prefix), it.capabilities.page_size
            for suffix in ((5,), (6, 7), (8, 9, 10)):
                cold = await it.engine.warm(prefix) if suffix == (5,) else None
                if cold is not None:
                    assert cold.prompt_tokens == len(prefix.ids)
                    assert cold.cached_tokens < max(page, 3)
                answer = await ask_one(it, request(prefix, suffix))
                ceiling = len(prefix.ids) // page * page
                assert ceiling <= answer.cached_tokens < len(prefix.ids) + len(suffix)

    run(main())


def test_warming_twice_is_harmless(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix, page = next(new_prefix), it.capabilities.page_size
            await it.engine.warm(prefix)
            again = await it.engine.warm(prefix)
            assert again.prompt_tokens == len(prefix.ids)
            assert again.cached_tokens >= (len(prefix.ids) - 1) // page * page
            answer = await ask_one(it, request(prefix))
            assert answer.cached_tokens >= len(prefix.ids) // page * page

    run(main())


def test_a_full_burst_after_warming_is_served_from_the_cache(
    harness: Harness, new_prefix: Iterator[Prefix]
) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix, page = next(new_prefix), it.capabilities.page_size
            await it.engine.warm(prefix)
            count = it.capabilities.batch * it.capabilities.concurrency
            asked = [request(prefix, (20 + n, 5), name=n) for n in range(count)]
            step = it.capabilities.batch
            got = await asyncio.gather(
                *(it.engine.generate(asked[at : at + step]) for at in range(0, count, step))
            )
            for answer in (one for part in got for one in part):
                assert isinstance(answer, Answer)
                assert answer.cached_tokens >= len(prefix.ids) // page * page

    run(main())


def test_a_prefix_never_seen_is_not_reported_as_cached(
    harness: Harness, new_prefix: Iterator[Prefix]
) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            await it.engine.warm(next(new_prefix))
            answer = await ask_one(it, request(next(new_prefix)))
            # Two random prefixes may begin with the same id.
            assert answer.cached_tokens < max(it.capabilities.page_size, 3)

    run(main())


def test_several_prefixes_stay_warm(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            page = it.capabilities.page_size
            prefixes = [next(new_prefix) for _ in range(3)]
            for prefix in prefixes:
                await it.engine.warm(prefix)
            for prefix in prefixes:
                answer = await ask_one(it, request(prefix))
                assert answer.cached_tokens >= len(prefix.ids) // page * page

    run(main())


# ---- what is refused


async def _refused(it: Opened, asked: Request, code: FailureCode) -> None:
    (no,) = await it.engine.generate([asked])
    assert isinstance(no, Rejected), no
    assert no.code is code
    assert no.identity == asked.identity
    assert no.message
    await ask_one(it, evolve(asked, suffix=(5, 6, 7), sampling=GREEDY))  # it lives


def test_refuses_a_prompt_longer_than_the_context(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix, room = next(new_prefix), it.capabilities.context_length - 50
            await _refused(it, request(prefix, (5,) * (room + 1), name=9), FailureCode.TOO_LONG)
            await _refused(it, request(prefix, (5,) * (room - 5), name=9), FailureCode.TOO_LONG)

    run(main())


def test_answers_a_prompt_that_just_fits(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            room = it.capabilities.context_length - 50 - GREEDY.max_new_tokens
            answer = await ask_one(it, request(next(new_prefix), (5,) * room))
            assert len(answer.ids) == GREEDY.max_new_tokens or answer.finish_reason.type == "stop"

    run(main())


def test_refuses_ids_outside_the_vocabulary(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix, code = next(new_prefix), FailureCode.TOKEN_OUT_OF_VOCABULARY
            for bad in (harness.vocab_size, -1, 2**40):
                await _refused(it, request(prefix, (5, bad), name=9), code)
            await ask_one(it, request(prefix, (0, harness.vocab_size - 1)))

    run(main())


def test_a_prefix_that_no_request_can_have_hurts_nothing(
    harness: Harness, new_prefix: Iterator[Prefix]
) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            for number, (ids, code) in enumerate(
                (
                    ((5, harness.vocab_size), FailureCode.TOKEN_OUT_OF_VOCABULARY),
                    ((5, -1), FailureCode.TOKEN_OUT_OF_VOCABULARY),
                    ((5,) * (it.capabilities.context_length + 1), FailureCode.TOO_LONG),
                )
            ):
                bad = Prefix(f"{number:f>64x}", ids)
                assert await it.engine.warm(bad) == WarmUp(len(ids), 0, computed=False)
                (no,) = await it.engine.generate([request(bad)])
                assert isinstance(no, Rejected)
                assert no.code is code
            await ask_one(it, request(next(new_prefix)))

    run(main())


def test_refusing_one_leaves_the_others(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            good = [request(prefix, (n,), name=n) for n in (10, 11, 12)]
            bad = request(prefix, (harness.vocab_size,), name=99)
            got = await ask(it, [good[0], bad, good[1], good[2]])
            assert [type(one) for one in got] == [Answer, Rejected, Answer, Answer]
            alone = [await ask_one(it, one) for one in good]
            assert [one.ids for one in got if isinstance(one, Answer)] == [one.ids for one in alone]

    run(main())


# ---- cancel and stop


def test_usable_after_a_cancelled_call(harness: Harness, new_prefix: Iterator[Prefix]) -> None:
    async def main() -> None:
        async with harness.opened() as it:
            prefix = next(new_prefix)
            await it.engine.warm(prefix)
            expected = await ask_one(it, request(prefix))
            for turns in (0, 1, 5, 30):
                asked = request(prefix, (9, 9), evolve(GREEDY, max_new_tokens=200), name=turns)
                task = asyncio.create_task(it.engine.generate([asked]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])  # cancelled, or answered before that
            assert (await ask_one(it, request(prefix))).ids == expected.ids

    run(main())


def test_stops_twice_and_without_a_start(harness: Harness) -> None:
    async def main() -> None:
        async with harness.served() as url:
            engine = harness.engine((), url)
            await engine.stop()
            await engine.start()
            await engine.stop()
            await engine.stop()

    run(main())
