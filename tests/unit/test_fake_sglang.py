"""The stand-in for SGLang does as the real one: queues, evicts, aborts, counts, and has ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import aiohttp

from tests.fake_sglang import FakeSglang

WARM = [5] * 20


async def ask(server: FakeSglang, rid: str, ids: Sequence[int], **fields: Any) -> tuple[int, Any]:
    body = {"rid": rid, "input_ids": ids, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{server.url}/generate", json={**body, **fields}) as response,
    ):
        return response.status, await response.json()


async def get(server: FakeSglang, path: str, method: str = "get") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{server.url}{path}") as response,
    ):
        return response.status, await response.text()


async def counters(server: FakeSglang) -> dict[str, float]:
    """Return the values of /metrics by name, over all labels."""
    _, text = await get(server, "/metrics")
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].removeprefix("sglang:")
            found[name] = found.get(name, 0) + float(line.rpartition(" ")[2])
    return found


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_counts_when_a_request_ends() -> None:
    async def main() -> None:
        async with FakeSglang(metrics=True, eos_ids=()) as server:
            assert "cached_tokens_total" not in await counters(server)
            for rid in "ab":
                await ask(server, rid, WARM)
            found = await counters(server)
        assert found["prompt_tokens_total"] == 40
        assert found["cached_tokens_total"] == 19
        assert found["num_requests_total"] == 2
        assert found["generation_tokens_total"] == 16
        assert found["cache_hit_rate"] == 0.0

    run(main())


def test_tells_no_counters_unasked() -> None:
    async def main() -> None:
        async with FakeSglang() as server:
            assert (await get(server, "/metrics"))[0] == 404

    run(main())


def test_a_full_queue_is_503_and_loads_tell_of_it() -> None:
    async def main() -> None:
        async with FakeSglang(max_running=1, max_queued=1, seconds_per_token=0.05) as server:
            both = [asyncio.create_task(ask(server, rid, WARM)) for rid in "ab"]
            while not server.ranks[0].waiting:
                await asyncio.sleep(0.001)
            _, loads = await get(server, "/v1/loads")
            assert '"num_running_reqs": 1, "num_waiting_reqs": 1' in loads
            assert (await get(server, "/flush_cache", "post"))[0] == 400
            status, body = await ask(server, "c", WARM)
            assert (status, body["message"]) == (503, "The request queue is full.")
            assert [status for status, _ in await asyncio.gather(*both)] == [200, 200]
            assert (await get(server, "/flush_cache", "post"))[0] == 200
            assert (await ask(server, "d", WARM))[1]["meta_info"]["cached_tokens"] == 0

    run(main())


def test_an_abort_ends_what_runs_with_a_part_and_what_waits_with_nothing() -> None:
    async def main() -> None:
        async with FakeSglang(max_running=1, seconds_per_token=0.2, eos_ids=()) as server:
            both = [asyncio.create_task(ask(server, rid, WARM)) for rid in ("runs", "waits")]
            while not server.ranks[0].waiting:
                await asyncio.sleep(0.001)
            async with aiohttp.ClientSession(server.url) as client:
                for rid in ("waits", "runs"):
                    await client.post("/abort_request", json={"rid": rid})
            (_, ran), (_, waited) = await asyncio.gather(*both)
        assert {one["meta_info"]["finish_reason"]["type"] for one in (ran, waited)} == {"abort"}
        assert len(ran["output_ids"]) == ran["meta_info"]["completion_tokens"] < 8
        assert "prompt_tokens" not in waited["meta_info"]

    run(main())


def test_a_cache_that_is_too_small_evicts_and_counts() -> None:
    async def main() -> None:
        async with FakeSglang(metrics=True, capacity=50) as server:
            for number in (5, 6, 7, 5):
                _, body = await ask(server, f"r{number}", [number] * 30)
            assert body["meta_info"]["cached_tokens"] == 0
            assert (await counters(server))["evicted_tokens_total"] > 60

    run(main())


def test_without_a_radix_cache_nothing_is_cached() -> None:
    async def main() -> None:
        async with FakeSglang(radix=False) as server:
            for rid in "ab":
                _, body = await ask(server, rid, WARM)
            assert body["meta_info"]["cached_tokens"] == 0

    run(main())


def test_ranks_take_turns_and_have_a_cache_each() -> None:
    async def main() -> None:
        async with FakeSglang(dp_size=2) as server:
            told = [(await ask(server, f"r{n}", WARM))[1]["meta_info"] for n in range(3)]
            assert [meta["dp_rank"] for meta in told] == [0, 1, 0]
            assert [meta["cached_tokens"] for meta in told] == [0, 0, 19]
            _, chosen = await ask(server, "x", WARM, routed_dp_rank=1)
            assert (chosen["meta_info"]["dp_rank"], chosen["meta_info"]["cached_tokens"]) == (1, 19)
            assert (await ask(server, "y", WARM, routed_dp_rank=2))[0] == 400

    run(main())


def test_what_arrives_during_a_prefill_shares_nothing_with_it() -> None:
    async def main() -> None:
        async with FakeSglang(seconds_per_prompt_token=0.002) as server:
            told = await asyncio.gather(*(ask(server, f"r{n}", WARM) for n in range(4)))
            assert {body["meta_info"]["cached_tokens"] for _, body in told} == {0}

    run(main())
