"""The SGLang engine: the bytes it sends, how it reads answers and faults, and what it says at a bad start."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from attrs import evolve

from fafo_build.errors import EngineError
from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import (
    Answer,
    Completion,
    InvalidAnswer,
    Load,
    Prefix,
    Rejected,
    Request,
    Unavailable,
    WarmUp,
)
from fafo_run.engines.sglang import SglangEngine, server_urls
from fafo_run.engines.sglang_info import capabilities, loads
from fafo_run.engines.sglang_json import MalformedError
from fafo_run.engines.sglang_router import is_router, workers
from fafo_run.engines.sglang_wire import AbortedError, Encoder, error_message, reply
from fafo_run.item import FailureCode, FinishReason
from tests.fake_sglang import FakeSglang, hang_up, refuse

PREFIX = Prefix("a" * 64, (11, 12, 13, 14))
GREEDY = Sampling(max_new_tokens=4, temperature=0.0)
SAMPLED = Sampling(max_new_tokens=4, temperature=0.8, top_p=0.9, top_k=40, min_p=0.1)
SPEC = declaration.Engine("default", "sglang", max_running=4)

REQUEST = Request(bytes(range(16)), 2, PREFIX, (21, 22), GREEDY, 77)


OPENED: list[SglangEngine] = []


def run(main: Coroutine[None, None, None]) -> None:
    """Run the test, and stop the engines it leaves, so that a failure shows itself and no open socket."""

    async def whole() -> None:
        try:
            await asyncio.wait_for(main, 60)
        finally:
            while OPENED:
                await OPENED.pop().stop()

    asyncio.run(whole())


def engine(url: str, *, vocab_size: int = 1000, context_length: int = 512, **spec: Any) -> SglangEngine:
    it = SglangEngine(
        evolve(SPEC, **spec),
        url,
        vocab_size=vocab_size,
        context_length=context_length,
        eos_ids=(2, 7),
    )
    OPENED.append(it)
    return it


async def started(server: FakeSglang, **spec: Any) -> SglangEngine:
    it = engine(server.url, **spec)
    await it.start()
    return it


# ---- the body


def test_body_is_what_sglang_reads() -> None:
    body = json.loads(Encoder((7, 2)).generate("r1", evolve(REQUEST, sampling=SAMPLED)))
    assert body == {
        "rid": "r1",
        "input_ids": [11, 12, 13, 14, 21, 22],
        "sampling_params": {
            "max_new_tokens": 4,
            "temperature": 0.8,
            "stop_token_ids": [2, 7],
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "sampling_seed": 77,
        },
        "stream": False,
    }


def test_greedy_sends_nothing_that_only_sampling_needs() -> None:
    body = json.loads(Encoder(()).generate("r1", REQUEST))
    assert body["sampling_params"] == {"max_new_tokens": 4, "temperature": 0.0}


def test_no_top_k_is_all_tokens() -> None:
    body = json.loads(Encoder(()).generate("r1", evolve(REQUEST, sampling=evolve(SAMPLED, top_k=None))))
    assert body["sampling_params"]["top_k"] == -1


def test_what_a_class_sets_is_sent_under_sglangs_names() -> None:
    asked = Sampling(
        max_new_tokens=4,
        temperature=0.0,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        stop=("\n\n", "END"),
        stop_token_ids=(9, 2),
        json_schema='{"type":"object"}',
    )
    body = json.loads(Encoder((7, 2)).generate("r1", evolve(REQUEST, sampling=asked)))
    assert body["sampling_params"] == {
        "max_new_tokens": 4,
        "temperature": 0.0,
        "stop_token_ids": [2, 7, 9],
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.1,
        "stop": ["\n\n", "END"],
        "json_schema": '{"type":"object"}',
    }
    for form in ({"regex": r"\d+"}, {"ebnf": 'root ::= "a"'}):
        body = json.loads(Encoder(()).generate("r1", evolve(REQUEST, sampling=evolve(GREEDY, **form))))
        assert body["sampling_params"] == {"max_new_tokens": 4, "temperature": 0.0, **form}


@pytest.mark.parametrize(("prefix", "suffix"), [((), (1,)), ((1,), ()), ((1, 2), (3,))])
def test_body_of_parts_that_are_empty(prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
    asked = evolve(REQUEST, prefix=Prefix("b" * 64, prefix), suffix=suffix)
    assert json.loads(Encoder(()).generate("r", asked))["input_ids"] == [*prefix, *suffix]


def test_one_artifact_name_with_other_ids_is_not_mistaken() -> None:
    encoder = Encoder(())
    encoder.generate("r", REQUEST)
    other = evolve(REQUEST, prefix=Prefix(PREFIX.artifact, (99,)))
    assert json.loads(encoder.generate("r", other))["input_ids"] == [99, 21, 22]


def test_warming_asks_for_one_token_of_the_prefix_alone() -> None:
    body = json.loads(Encoder(()).warm("w", PREFIX))
    assert body["input_ids"] == [11, 12, 13, 14]
    assert body["sampling_params"] == {"max_new_tokens": 1, "temperature": 0.0}


# ---- the answer


def answer(**meta: Any) -> dict[str, Any]:
    return {
        "text": "x",
        "output_ids": [5, 6],
        "meta_info": {
            "id": "r",
            "finish_reason": {"type": "length", "length": 2},
            "prompt_tokens": 6,
            "completion_tokens": 2,
            "cached_tokens": 4,
        }
        | meta,
    }


def test_fewer_in_flight_than_ranks_are_refused() -> None:
    async def main() -> None:
        async with FakeSglang(dp_size=4) as server:
            await (await started(server, max_running=4)).stop()
            with pytest.raises(EngineError) as caught:
                await started(server, max_running=3)
            assert f"{server.url} has 4 data-parallel ranks, and max_running is 3" in str(caught.value)
            (problem,) = caught.value.problems
            assert problem.field == "engine.max_running" and "at least 4" in (problem.cure or "")

    run(main())


def test_reads_an_answer() -> None:
    found = reply(json.dumps(answer()).encode(), prompt_tokens=6, max_new_tokens=2, vocab_size=1000)
    assert (found.output_ids, found.meta_info.cached_tokens) == ([5, 6], 4)


DEEP = "[" * 3_000 + "]" * 3_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        json.dumps(answer())[:-5].encode(),
        json.dumps(answer(completion_tokens=3)).encode(),
        json.dumps(answer(completion_tokens=3) | {"output_ids": [5, 6, 7]}).encode(),
        json.dumps(answer(prompt_tokens=5)).encode(),
        json.dumps(answer(cached_tokens=7)).encode(),
        json.dumps(answer(cached_tokens=-1)).encode(),
        json.dumps(answer(cached_tokens=None)).encode(),
        json.dumps(answer(finish_reason="length")).encode(),
        json.dumps(answer() | {"output_ids": ["a", "b"]}).encode(),
        json.dumps(answer() | {"output_ids": [5, 1000]}).encode(),
        json.dumps(answer() | {"output_ids": [-1, 5]}).encode(),
        b"\xff\xfe",
        json.dumps(answer(finish_reason={"type": "stop", "matched": 2**63})).encode(),
        json.dumps(answer(finish_reason={"type": "stop", "matched": -(2**63) - 1})).encode(),
        json.dumps(answer(finish_reason={"type": "stop", "matched": True})).encode(),
        pytest.param(
            json.dumps(answer(finish_reason={"type": "stop", "matched": "x" * 100_000})).encode(),
            id="long text",
        ),
        *(
            json.dumps(answer(finish_reason={"type": kind})).encode()
            for kind in ("", "x" * 65, "a b", "stop\n", "\x1b[31m", "ſtop")
        ),
        pytest.param(json.dumps(answer(weight_version="x" * 10_000)).encode(), id="long name"),
        json.dumps(answer(weight_version="\x1b[31m")).encode(),
        json.dumps(answer() | {"output_ids": [5, 10**30]}).encode(),
        pytest.param(
            json.dumps(answer(completion_tokens="HERE")).replace('"HERE"', "9" * 5_000).encode(),
            id="long number",
        ),
        pytest.param(json.dumps(answer(other="HERE")).replace('"HERE"', DEEP).encode(), id="deep inside"),
        pytest.param(DEEP.encode(), id="deep"),
    ],
)
def test_an_answer_that_is_not_one_or_contradicts_itself(body: bytes) -> None:
    with pytest.raises(MalformedError):
        reply(body, prompt_tokens=6, max_new_tokens=2, vocab_size=1000)


@pytest.mark.parametrize("meta", [{"prompt_tokens": 6, "completion_tokens": 9, "cached_tokens": 0}, {}])
def test_an_answer_that_was_aborted_is_another_thing_than_a_bad_one(meta: dict[str, Any]) -> None:
    said = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}, **meta}
    with pytest.raises(AbortedError, match="in waiting queue"):
        reply(
            json.dumps({"output_ids": [], "meta_info": said}).encode(),
            prompt_tokens=6, max_new_tokens=2, vocab_size=1000,
        )  # fmt: skip


def test_the_words_of_who_aborts_are_one_line_that_is_not_too_long() -> None:
    said = {"finish_reason": {"type": "abort", "message": "no\x1b[31m\n" + "x" * 1_000_000}}
    with pytest.raises(AbortedError) as caught:
        reply(
            json.dumps({"output_ids": [], "meta_info": said}).encode(),
            prompt_tokens=6, max_new_tokens=2, vocab_size=1000,
        )  # fmt: skip
    assert str(caught.value) == ("no [31m " + "x" * 500)[:500] + "…"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "unknown field"}', "unknown field"),
        (b'{"object": "error", "message": "bad\\n body"}', "bad body"),
        (b'{"detail": "Not Found"}', '{"detail":"Not Found"}'),
        (b"<html>oops</html>", "<html>oops</html>"),
        (b"", ""),
        (b"\xff", "�"),
        (b"x" * 600, "x" * 500 + "…"),
        (b'{"error": "a \\u001b[31mred\\u0000 \\u009bone"}', "a [31mred one"),
        pytest.param(DEEP.encode(), "[" * 500 + "…", id="deep"),
        pytest.param(b'{"error": %s}' % DEEP.encode(), '{"error": ' + "[" * 490 + "…", id="deep inside"),
    ],
)
def test_what_a_server_says_in_an_error(body: bytes, message: str) -> None:
    assert error_message(body) == message


# ---- what the server says of itself


def info(server: dict[str, Any], model: dict[str, Any] | None = None, max_running: int = 4) -> Any:
    server = {"version": "0.5.23", "model_path": "m"} | server
    model = {"model_path": "m"} | (model or {})
    return capabilities(
        json.dumps(server).encode(),
        json.dumps(model).encode(),
        url="http://h",
        vocab_size=1000,
        context_length=512,
        max_running=max_running,
    )


def test_capabilities_are_the_servers_own() -> None:
    found = info(
        {"page_size": 64, "max_req_input_len": 400, "disable_radix_cache": True, "dtype": "bfloat16"}
        | {"api_key": "secret", "schedule_policy": "lpm"},
        {"model_path": "served", "weight_version": "w2"},
    )
    assert (found.engine, found.version, found.model) == ("sglang", "0.5.23", "served")
    assert (found.page_size, found.prefix_cache, found.context_length) == (64, False, 399)
    assert (found.batch, found.concurrency, found.server) == (1, 4, "http://h")
    assert found.settings == {"dtype": "bfloat16", "schedule_policy": "lpm", "weight_version": "w2"}


def test_capabilities_of_a_server_that_says_little() -> None:
    found = info({})
    assert (found.page_size, found.prefix_cache, found.context_length, found.concurrency) == (1, True, 512, 4)


@pytest.mark.parametrize(
    ("server", "unable"),
    [
        ({"grammar_backend": "xgrammar"}, set()),
        ({"grammar_backend": "llguidance"}, set()),
        ({"grammar_backend": None}, set()),
        ({"grammar_backend": "outlines"}, {"ebnf"}),
        ({"grammar_backend": "none"}, {"json_schema", "regex", "ebnf"}),
        (
            {"grammar_backend": "xgrammar", "skip_tokenizer_init": True},
            {"json_schema", "regex", "ebnf", "stop"},
        ),
    ],
)
def test_what_a_server_was_started_without(server: dict[str, Any], unable: set[str]) -> None:
    found = info(server).unable
    assert set(found) == unable
    assert all(cure for cure in found.values())


@pytest.mark.parametrize(
    ("server", "concurrency"),
    [
        ({"max_running_requests": 10}, 138),
        ({"internal_states": [{"effective_max_running_requests_per_dp": 8}]}, 136),
        ({"dp_size": 2, "internal_states": [{"effective_max_running_requests_per_dp": 8}] * 2}, 136),
        ({"dp_size": 4, "max_running_requests": 5000}, 250),
        ({"max_running_requests": 5000}, 1000),
    ],
)
def test_no_more_in_flight_than_keep_the_schedule_prefix_aware(
    server: dict[str, Any], concurrency: int
) -> None:
    assert info(server, max_running=1000).concurrency == concurrency


def test_a_model_that_generates_nothing_is_refused() -> None:
    with pytest.raises(MalformedError, match="embeddings"):
        info({}, {"is_generation": False})


@pytest.mark.parametrize(
    ("server", "model"),
    [
        ({"dtype": 10**30}, {}),
        ({"quantization": ["x"]}, {}),
        ({"attention_backend": "x" * 10_000}, {}),
        ({"version": "0\x1b[31m"}, {}),
        ({"deep": "DEEP"}, {}),
        ({}, {"deep": "DEEP"}),
        ({}, {"weight_version": "w\n"}),
        ({}, {"preferred_sampling_params": "x" * 100_000}),
    ],
)
def test_what_no_server_can_say_of_itself(server: dict[str, Any], model: dict[str, Any]) -> None:
    told = [json.dumps({"version": "1", "model_path": "m"} | said) for said in (server, model)]
    bodies = [text.replace('"DEEP"', DEEP).encode() for text in told]
    with pytest.raises(MalformedError):
        capabilities(*bodies, url="http://h", vocab_size=1000, context_length=512, max_running=4)


PER_RANK = "effective_max_running_requests_per_dp"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("page_size", wrong) for wrong in (-1, 10**30)),
        *(("max_req_input_len", wrong) for wrong in (-5, 0, 2, 10**30)),
        *(("max_running_requests", wrong) for wrong in (-500, 0, 10**30)),
        *(("dp_size", wrong) for wrong in (-1, 0, 10**9)),
        *(("max_total_num_tokens", wrong) for wrong in (-1, 0, 10**30)),
        ("chunked_prefill_size", 10**30),
        ("max_prefill_tokens", 10**30),
        *(("internal_states", [{PER_RANK: 8}, {PER_RANK: wrong}]) for wrong in (-128, 0, 10**30)),
    ],
)
def test_a_server_that_says_nonsense_of_itself_is_not_asked(name: str, wrong: object) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            sound = dict(server.server_info)
            server.server_info[name] = wrong
            for begin in (engine(server.url).start, it.look):
                with pytest.raises(EngineError) as caught:
                    await begin()
                assert server.url in str(caught.value) and name in str(caught.value)
            server.server_info = sound
            await it.look()

    run(main())


@pytest.mark.parametrize("number", [-1, 2**63, "3", None])
def test_a_load_that_can_be_none(number: Any) -> None:
    assert loads(b'{"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 0}, {}]}') == (
        Load(3, 0), Load(0, 0),
    )  # fmt: skip
    for name in ("num_running_reqs", "num_waiting_reqs"):
        with pytest.raises(MalformedError):
            loads(json.dumps({"loads": [{name: number}]}).encode())
    with pytest.raises(MalformedError):
        loads(DEEP.encode())


# ---- generate, and what can happen to it


async def generate(it: SglangEngine, asked: Request = REQUEST) -> Completion:
    (one,) = await it.generate([asked])
    return one


def test_an_answer_carries_the_servers_counts_and_ids() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            warm = await it.warm(PREFIX)
            assert (warm.prompt_tokens, warm.cached_tokens) == (4, 0)
            got = await generate(it)
            assert isinstance(got, Answer)
            assert (got.cached_tokens, got.server, len(got.ids)) == (4, server.url, 4)
            assert got.finish_reason == FinishReason("length")
            body = server.received[-1]
            assert body["rid"].startswith(f"{bytes(range(16)).hex()}.2.")
            assert body["sampling_params"]["stop_token_ids"] == [2, 7]

    run(main())


def test_a_server_is_asked_once_whether_it_reads_a_grammar() -> None:
    async def compiles(_: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        broken = body["sampling_params"].get("regex") == "("
        return refuse("Failed to compile regex grammar: unclosed") if broken else None

    async def main() -> None:
        async with FakeSglang() as server:
            server.server_info["grammar_backend"] = "xgrammar"
            server.fault = compiles
            it = await started(server)
            assert await it.refuses(evolve(GREEDY, stop=("a",), presence_penalty=1.0)) is None
            assert server.received == []
            assert await it.refuses(evolve(GREEDY, regex="a")) is None
            assert await it.refuses(evolve(GREEDY, regex="(")) == "Failed to compile regex grammar: unclosed"
            first, _ = server.received
            assert first["input_ids"] == [0]
            assert first["sampling_params"]["max_new_tokens"] == 1
            server.fault = dies
            with pytest.raises(Unavailable):
                await it.refuses(evolve(GREEDY, regex="a"))
            await it.stop()

    run(main())


def test_names_of_requests_never_repeat() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            for _ in range(2):
                it = await started(server)
                await generate(it)
                await generate(it)
                await it.stop()
            rids = [body["rid"] for body in server.received]
            assert len(set(rids)) == len(rids) == 4

    run(main())


def test_a_large_body_is_sent() -> None:
    async def main() -> None:
        async with FakeSglang(vocab_size=10**7, context_length=300_000) as server:
            it = engine(server.url, vocab_size=10**7, context_length=300_000)
            await it.start()
            got = await generate(it, evolve(REQUEST, suffix=(9_999_999,) * 200_000))
            assert isinstance(got, Answer)

    run(main())


Script = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | None]]


def response(status: int, body: Any) -> Script:
    async def fault(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    return fault


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "no, thanks"}}),
        (400, {"error": "no, thanks"}),
        (400, {"object": "error", "message": "no, thanks", "code": 400}),
        (413, "no, thanks"),
        (422, {"message": "no, thanks"}),
    ],
)
def test_a_refused_request_is_rejected_with_the_servers_words(status: int, body: Any) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = response(status, body)
            got = await generate(it)
            assert got == Rejected(REQUEST.identity, FailureCode.REJECTED, "no, thanks", server.url)
            server.fault = None
            assert isinstance(await generate(it), Answer)

    run(main())


async def truncated(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    found = web.StreamResponse(headers={"Content-Length": "1000"})
    await found.prepare(request)
    await found.write(b'{"output_ids": [1')
    hang_up(request)
    return found


async def dies(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    hang_up(request)
    return web.Response()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(response(429, {"error": "slow down"}), id="429"),
        pytest.param(response(500, "oops"), id="500"),
        pytest.param(response(502, "<html>bad gateway</html>"), id="502"),
        pytest.param(response(503, {"error": {"message": "The request queue is full."}}), id="503"),
        pytest.param(response(401, {"error": "Unauthorized"}), id="401"),
        pytest.param(response(404, "gone"), id="404"),
        pytest.param(response(302, "elsewhere"), id="302"),
        pytest.param(response(200, "not json"), id="invalid JSON"),
        pytest.param(response(200, answer(completion_tokens=3)), id="a wrong count"),
        pytest.param(response(200, answer(prompt_tokens=5)), id="a cut prompt"),
        pytest.param(response(200, answer(finish_reason={"type": "abort", "message": "x"})), id="abort"),
        pytest.param(truncated, id="truncated"),
        pytest.param(dies, id="reset"),
    ],
)
def test_a_lost_answer_says_nothing_about_the_request(fault: Script) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = fault
            with pytest.raises(Unavailable, match=server.url):
                await generate(it)
            with pytest.raises(Unavailable):
                await it.warm(PREFIX)
            server.fault = None
            assert isinstance(await generate(it), Answer)

    run(main())


def test_an_answer_by_other_weights_is_none() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            assert isinstance(await generate(it), Answer)
            server.model_info["weight_version"] = "v2"
            for asked in (generate(it), it.warm(PREFIX)):
                with pytest.raises(Unavailable, match="changed from default to v2"):
                    await asked
            await it.look()
            assert isinstance(await generate(it), Answer)
            await it.stop()

    run(main())


def test_a_kept_connection_whose_server_has_died_is_broken() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            await generate(it)
        with pytest.raises(Unavailable) as caught:
            await generate(it)
        assert caught.value.broken
        with pytest.raises(Unavailable) as caught:
            await generate(it)
        assert not caught.value.broken, "nothing was under way"
        await it.stop()

    run(main())


def test_an_answer_outside_the_vocabulary_is_none() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = response(200, answer() | {"output_ids": [5, 1000]})
            with pytest.raises(InvalidAnswer, match="token 1000 at place 1"):
                await generate(it)
            one = {"prompt_tokens": 4, "completion_tokens": 1}
            server.fault = response(200, answer(**one) | {"output_ids": [1000]})
            with pytest.raises(InvalidAnswer, match="token 1000 at place 0"):
                await it.warm(PREFIX)

    run(main())


@pytest.mark.parametrize(
    "asked",
    [
        evolve(REQUEST, suffix=(1000,)),
        evolve(REQUEST, suffix=(-1,)),
        evolve(REQUEST, suffix=(5,) * 600),
        evolve(REQUEST, prefix=Prefix("b" * 64, ()), suffix=()),
        evolve(REQUEST, prefix=Prefix("b" * 64, (2000,))),
    ],
)
def test_what_would_kill_the_server_is_never_sent(asked: Request) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            assert isinstance(await generate(it, asked), Rejected)
            assert server.received == []

    run(main())


@pytest.mark.parametrize("ids", [(1, 1000), (-1,), (5,) * 600, ()])
def test_a_prefix_that_would_kill_the_server_is_never_sent(ids: tuple[int, ...]) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            assert await it.warm(Prefix("b" * 64, ids)) == WarmUp(len(ids), 0, computed=False)
            assert server.received == []

    run(main())


def test_a_prefix_that_the_server_refuses_is_left_to_its_requests() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = response(400, {"error": "no"})
            assert await it.warm(PREFIX) == WarmUp(4, 0, computed=False)
            assert isinstance(await generate(it), Rejected)

    run(main())


# ---- connections


def test_a_kept_connection_that_the_server_closed_is_tried_once_more() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            first = await generate(it)  # its connection is kept
            closed = []

            async def closes_once(request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
                if not closed:
                    closed.append(body["rid"])
                    hang_up(request)
                return None

            server.fault = closes_once
            again = await generate(it)
            assert isinstance(first, Answer)
            assert isinstance(again, Answer)
            assert again.ids == first.ids
            assert len(server.received) == 3
            assert server.received[2]["rid"] == f"{closed[0]}.again"

    run(main())


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = dies
            with pytest.raises(Unavailable, match="connection was lost"):
                await generate(it)
            assert len(server.received) == 1

    run(main())


def test_a_server_that_went_away_is_unavailable() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            await generate(it)
        with pytest.raises(Unavailable):
            await generate(it)
        with pytest.raises(Unavailable, match="can't be reached: Connection refused"):
            await generate(it)
        await it.stop()

    run(main())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


async def hangs(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def test_silence_is_unavailable_and_the_request_is_aborted() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server, timeout_silence=0.05)
            server.fault = hangs
            with pytest.raises(Unavailable, match="no whole answer in"):
                await generate(it)
            await until(lambda: bool(server.aborted))
            assert server.aborted == [server.received[0]["rid"]]

    run(main())


def test_a_cancelled_request_is_aborted_at_the_server() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            it = await started(server)
            server.fault = hangs
            task = asyncio.create_task(generate(it))
            await until(lambda: bool(server.received))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await it.stop()  # lets the abort leave
            assert server.aborted == [server.received[0]["rid"]]

    run(main())


def test_an_engine_that_is_not_started_or_stopped_is_unavailable() -> None:
    async def main() -> None:
        it = engine("http://127.0.0.1:1")
        with pytest.raises(Unavailable, match="isn't started"):
            await generate(it)
        with pytest.raises(Unavailable, match="isn't started"):
            await it.warm(PREFIX)
        await it.stop()

    run(main())


# ---- the start


async def failed(it: SglangEngine) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await it.start()
    await it.stop()
    (problem,) = caught.value.problems
    assert problem.file == "fafo.toml"
    assert problem.field is not None and problem.field.startswith("engine.")
    assert problem.cure
    return caught.value


def test_start_reads_the_server() -> None:
    async def main() -> None:
        async with FakeSglang(page_size=16) as server:
            for old in (False, True):
                server.old_names = old
                it = engine(server.url)
                said = await it.start()
                assert (said.page_size, said.context_length, said.server) == (16, 505, server.url)

    run(main())


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ((), "no server is given"),
        (("http://a", "http://b", "http://a/"), "http://a is given twice"),
        (("127.0.0.1:30000",), "isn't the URL"),
        (("http://",), "isn't the URL"),
        (("http://h:port",), "isn't the URL"),
        (("http://h:99999",), "isn't the URL"),
        (("http://[::1",), "isn't the URL"),
        (("ftp://h",), "isn't the URL"),
        (("http://h:1?x=1",), "isn't the URL"),
        (("http://h:1/#x",), "isn't the URL"),
        (("http://h:1/a b",), "isn't the URL"),
        (("http://..",), "isn't the URL"),
        ((f"http://{'a' * 64}.org",), "isn't the URL"),
        (("http://me:secret@h:1",), "a server's URL holds a user or a password"),
    ],
)
def test_urls_that_are_no_servers(urls: tuple[str, ...], message: str) -> None:
    with pytest.raises(EngineError) as caught:
        server_urls(evolve(SPEC, urls=urls))
    assert message in str(caught.value) and "secret" not in str(caught.value)
    (problem,) = caught.value.problems
    assert (problem.file, problem.field) == ("fafo.toml", "engine.urls") and problem.cure


def test_urls_of_several_servers_need_no_slash_at_their_ends() -> None:
    urls = ("http://a/", "http://b:1", "https://c.example./v1//", "http://[::1]:30000")
    assert server_urls(evolve(SPEC, urls=urls)) == tuple(url.rstrip("/") for url in urls)


def test_start_without_a_server() -> None:
    async def main() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))  # bound and not listening: refused
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            error = await failed(engine(url))
        assert str(error) == f"no server at {url}: Connection refused"
        assert "python -m sglang.launch_server" in error.render()

    run(main())


def test_start_with_a_name_that_nobody_knows() -> None:
    async def main() -> None:
        assert "nowhere.invalid" in str(await failed(engine("http://nowhere.invalid:30000")))

    run(main())


def test_start_with_https_where_there_is_none() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            error = await failed(engine(server.url.replace("http:", "https:")))
            assert "no secure connection" in str(error)

    run(main())


def test_start_with_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fafo_run.engines.sglang.START", 0.05)

    async def main() -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen()  # connects, and nobody reads
            error = await failed(engine(f"http://127.0.0.1:{sock.getsockname()[1]}"))
        assert "doesn't answer" in str(error)

    run(main())


def test_start_with_something_that_does_not_speak_http() -> None:
    async def ssh(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(ssh, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert "isn't an SGLang server" in str(await failed(engine(f"http://127.0.0.1:{port}")))

    run(main())


@pytest.mark.parametrize("info", [{"vllm_config": "x"}, [], {"version": 3, "model_path": "m"}])
def test_start_with_another_kind_of_server(info: Any) -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            server.server_info = info
            assert "isn't an SGLang server" in str(await failed(engine(server.url)))

    run(main())


def test_start_with_a_web_server_that_knows_none_of_the_paths() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            error = await failed(engine(f"{server.url}/elsewhere"))
            assert "it has no /server_info" in str(error)

    run(main())


def test_start_with_a_model_for_embeddings() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            server.model_info["is_generation"] = False
            assert "embeddings" in str(await failed(engine(server.url)))

    run(main())


def test_start_with_a_server_that_is_not_ready() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            server.health = 503
            error = await failed(engine(server.url))
            assert "isn't ready: /health answers HTTP 503" in str(error)

    run(main())


def test_the_api_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeSglang(api_key="open-sesame") as server:
            monkeypatch.setenv("THE_KEY", "open-sesame\n")
            it = engine(server.url, api_key_env="THE_KEY")
            said = await it.start()
            assert "open-sesame" not in repr(said)
            assert isinstance(await generate(it), Answer)
            await it.stop()

            error = await failed(engine(server.url))
            assert "api_key_env" in error.render()
            monkeypatch.setenv("THE_KEY", "wrong-word")
            error = await failed(engine(server.url, api_key_env="THE_KEY"))
            assert "THE_KEY" in error.render()
            assert "wrong-word" not in error.render()

    run(main())


@pytest.mark.parametrize("value", [None, "", "  ", "schlüssel", "a\nb"])
def test_start_without_a_usable_api_key(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("THE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("THE_KEY", value)

    async def main() -> None:
        error = await failed(engine("http://127.0.0.1:1", api_key_env="THE_KEY"))
        assert "THE_KEY" in str(error)
        assert error.problems[0].field == "engine.api_key_env"

    run(main())


def test_errors_name_the_table_of_a_named_engine() -> None:
    with pytest.raises(EngineError) as caught:
        server_urls(evolve(SPEC, name="big", urls=()))
    assert caught.value.problems[0].field == "engines.big.urls"


def test_what_is_no_count_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 2 * "sglang:prompt_tokens_total{} 1.5e308\n"
    monkeypatch.setattr("tests.fake_sglang.metrics", lambda *_: said)

    async def main() -> None:
        async with FakeSglang(metrics=True) as server:
            it = await started(server)
            with pytest.raises(Unavailable, match="prompt_tokens"):
                await it.counters()

    run(main())


# ---- a router in front


def routing(urls: Sequence[str]) -> web.Application:
    """Return what sglang-router 0.3.2 says in front of servers; it passes nothing on."""
    said = {
        "/get_server_info": {"router_manager": True, "routers_count": 1, "workers_count": len(urls)},
        "/get_model_info": {"model_path": "m", "is_generation": True, "weight_version": "default"},
        "/workers": {"workers": [{"id": "x", "url": url, "is_healthy": True} for url in urls]},
        "/health": {},
    }

    async def tell(request: web.Request) -> web.Response:
        return web.json_response(said[request.path])

    app = web.Application()
    app.add_routes([web.get(path, tell) for path in said])
    return app


@asynccontextmanager
async def router(urls: Sequence[str]) -> AsyncIterator[str]:
    runner = web.AppRunner(routing(urls), shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_servers_behind_a_router_are_one_of_many_times_the_size() -> None:
    async def main() -> None:
        async with FakeSglang(page_size=16) as server, router([server.url, "http://127.0.0.1:9"]) as url:
            found = await engine(url, max_running=None).start()
            assert (found.server, found.page_size, found.version) == (url, 16, "0.5.23")
            assert (found.running, found.concurrency, found.ranks) == (2 * 64, 2 * 64 + 128, 1)
            assert found.cache_tokens is None and found.settings["router_workers"] == 2

    run(main())


def test_servers_that_only_their_router_reaches_are_taken_at_sglangs_defaults() -> None:
    async def main() -> None:
        async with router(["http://127.0.0.1:9"]) as url:
            found = await engine(url).start()
            assert (found.page_size, found.prefix_cache, found.version) == (1, True, "unknown")

    run(main())


@pytest.mark.parametrize("read", [is_router, workers])
def test_what_no_router_can_say(read: Callable[[bytes], object]) -> None:
    for body in (DEEP.encode(), b'{"router_manager": 1, "workers": [{"url": 1}]}', b"\xff", b""):
        with pytest.raises(MalformedError):
            read(body)


def test_a_router_without_servers_is_refused() -> None:
    async def main() -> None:
        async with router([]) as url:
            assert "has no servers" in str(await failed(engine(url)))

    run(main())
