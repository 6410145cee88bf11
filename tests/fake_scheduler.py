"""What stands behind the HTTP side of the stand-in for SGLang: ranks with a queue and a cache each, and what
they count. It knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from attrs import define, field, frozen

from fafo_run.engines.radix import RadixCache
from fafo_run.item import Ids


class QueueFullError(Exception):
    """As many requests wait as may."""


class CountedCache(RadixCache):
    """Counts what it forgets for want of room."""

    def __init__(self, *, page_size: int, capacity: int | None) -> None:
        super().__init__(page_size=page_size, capacity=capacity)
        self._whole_pages = page_size
        self.evicted = 0
        """Tokens, since the server started."""

    def insert(self, ids: Ids) -> None:
        ids = ids[: len(ids) // self._whole_pages * self._whole_pages]
        grown = self.size + len(ids) - self.match(ids)
        super().insert(ids)
        self.evicted += grown - self.size


@define
class Flight:
    """One request from its arrival to its end."""

    rid: str
    aborted: asyncio.Event = field(factory=asyncio.Event)


@frozen
class Computed:
    """How far a request came."""

    rank: int
    cached: int
    """Prompt tokens from the cache."""
    tokens: int
    """Of the output."""
    started: bool = True
    """False for one that was aborted while it waited."""


@define
class Counters:
    """What the server counts over all its clients since it started; only of requests that ended."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    aborted: int = 0


class Rank:
    """One data-parallel rank: a cache, so many requests at once, and a queue."""

    def __init__(
        self,
        number: int,
        *,
        page_size: int,
        capacity: int,
        radix: bool,
        max_running: int,
        max_queued: int | None,
        seconds_per_token: float,
        seconds_per_prompt_token: float,
    ) -> None:
        self.number, self.capacity, self.max_running = number, capacity, max_running
        self.cache = CountedCache(page_size=page_size, capacity=capacity)
        self.running = self.waiting = 0
        self._radix, self._max_queued = radix, max_queued
        self._decode, self._prefill = seconds_per_token, seconds_per_prompt_token
        self._slots = asyncio.Semaphore(max_running)

    async def compute(self, flight: Flight, prompt: Ids, output: Ids, key: str = "") -> Computed:
        """Return when the answer is there, or as much of it as there was when the request was aborted.

        `key` is its namespace: what two of them hold is never the same.

        Raises `QueueFullError`.
        """
        prompt, output = _within(key, prompt), _within(key, output)
        if not await self._admitted(flight):
            return Computed(self.number, 0, 0, started=False)
        self.running += 1
        try:
            # The last token is always computed: its logits are needed.
            cached = self.cache.match(prompt[:-1]) if self._radix else 0
            # What arrives until then shares nothing with it, as in one prefill batch.
            await self._takes(flight, self._prefill * (len(prompt) - cached))
            if self._radix:
                self.cache.insert(prompt)
            left = await self._takes(flight, self._decode * len(output))
            done = len(output) - (math.ceil(left / self._decode) if left else 0)
            if self._radix:
                # The last token was never fed back, so there is no state for it.
                self.cache.insert(prompt + output[: max(0, done - 1)])
            return Computed(self.number, cached, done)
        finally:
            self.running -= 1
            self._slots.release()

    async def _admitted(self, flight: Flight) -> bool:
        """Wait for a slot; return False when the request was aborted before."""
        if not self._slots.locked():
            await self._slots.acquire()
            return True
        if self._max_queued is not None and self.waiting + 1 > self._max_queued:
            raise QueueFullError
        self.waiting += 1
        slot = asyncio.ensure_future(self._slots.acquire())
        aborted = asyncio.ensure_future(flight.aborted.wait())
        try:
            await asyncio.wait((slot, aborted), return_when=asyncio.FIRST_COMPLETED)
            admitted = slot.done()
        except asyncio.CancelledError:
            if not slot.cancel():
                self._slots.release()
            raise
        finally:
            self.waiting -= 1
            aborted.cancel()
        if not admitted:
            slot.cancel()
        return admitted

    @staticmethod
    async def _takes(flight: Flight, seconds: float) -> float:
        """Wait so long, and return how many seconds were left when the request was aborted: mostly 0."""
        if not seconds:
            await asyncio.sleep(0)
            return 0.0
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        try:
            async with asyncio.timeout(seconds):
                await flight.aborted.wait()
        except TimeoutError:
            return 0.0
        return max(0.0, end - clock())

    def load(self) -> dict[str, object]:
        """Return this rank's entry of /v1/loads."""
        return {
            "timestamp": 0.0,
            "dp_rank": self.number,
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.waiting,
            "num_waiting_uncached_tokens": 0,
            "num_used_tokens": self.cache.size,
            "num_total_tokens": self.cache.size,
            "max_total_num_tokens": self.capacity,
            "max_running_requests": self.max_running,
            "token_usage": round(self.cache.size / self.capacity, 4),
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "queues": {
                "waiting": self.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
            },
        }  # fmt: skip


def _within(key: str, ids: Ids) -> Ids:
    """Return what stands for ids in a namespace, where the tree of ids is one."""
    return tuple((key, token) for token in ids) if key else ids  # type: ignore[misc]


def metrics(model: str, counted: Counters, ranks: list[Rank]) -> str:
    """Return /metrics: Prometheus text, as the server gives it, whose counters begin to exist when first
    counted. Its gauge of the hit rate is that of the last batch, and read 0 whenever it was looked at.
    """
    return "".join(f"{line}\n" for line in _lines(model, counted, ranks))


def _lines(model: str, counted: Counters, ranks: list[Rank]) -> Iterator[str]:
    whole = f'engine_type="unified",model_name="{model}"'
    told = f'engine_type="unified",is_streaming="false",model_name="{model}"'
    cached = f'cache_source="device",{whole}'
    for name, value, labels, what in (
        ("prompt_tokens_total", counted.prompt_tokens, told, "Number of prefill tokens processed."),
        (
            "generation_tokens_total",
            counted.generation_tokens,
            told,
            "Number of tokens generated.",
        ),
        ("cached_tokens_total", counted.cached_tokens, cached, "Number of cached prompt tokens by source."),
        ("num_requests_total", counted.requests, told, "Number of requests processed."),
        ("num_aborted_requests_total", counted.aborted, whole, "Number of requests aborted."),
    ):
        yield from _head(name, "counter", what)
        if value:
            yield f"sglang:{name}{{{labels}}} {float(value)}"
    yield from _head("evicted_tokens_total", "counter", "The number of device KV token slots freed.")
    for rank in ranks:
        if rank.cache.evicted:
            labels = f'cache_type="RadixCache",dp_rank="{rank.number}",tp_rank="0"'
            yield f"sglang:evicted_tokens_total{{{labels}}} {float(rank.cache.evicted)}"
    for name, what in (
        ("num_running_reqs", "The number of running requests."),
        ("num_queue_reqs", "The number of requests in the waiting queue."),
        ("cache_hit_rate", "The prefix cache hit rate."),
    ):
        yield from _head(name, "gauge", what)
        for rank in ranks:
            value = {"num_running_reqs": rank.running, "num_queue_reqs": rank.waiting}.get(name, 0)
            dp = f'dp_rank="{rank.number}",' if len(ranks) > 1 else ""
            labels = f'{dp}engine_type="unified",model_name="{model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
            yield f"sglang:{name}{{{labels}}} {float(value)}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP sglang:{name} {what}"
    yield f"# TYPE sglang:{name} {kind}"
