"""Sends a planned sequence of prompts to a server, as a run does: to hold simulations against."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Sequence
from urllib.parse import urlsplit

from fafo_run.run.records import ceiling
from fafo_run.run.simulation import Asked
from fafo_run.run.warmth import Warmth

GREEDY = {"temperature": 0, "ignore_eos": True}
_names = itertools.count()


async def play(url: str, sequence: Sequence[Asked], *, in_flight: int, page_size: int = 1) -> list[int]:
    """Return how many tokens of each prompt came from the server's cache.

    At most `in_flight` prompts are at the server at once; a prefix is warmed up before its first one, and
    again after one of them found less than it. What is sent arrives in order: each request has left before
    the next is begun.
    """
    slots, warmth = asyncio.Semaphore(in_flight), Warmth()
    cached = [0] * len(sequence)

    async def one(number: int, asked: Asked, answer: Awaitable[int], epoch: int) -> None:
        cached[number] = await answer
        limit = ceiling(asked.prefix, len(asked.prefix) + len(asked.suffix), page_size)
        warmth.seen(str(id(asked.prefix)), epoch, whole=cached[number] >= limit)
        slots.release()

    async with asyncio.TaskGroup() as tasks:
        for number, asked in enumerate(sequence):
            await slots.acquire()
            name = str(id(asked.prefix))
            if not warmth.is_warm(name):
                await (await _send(url, asked.prefix, 1))
                warmth.warmed(name)
            answer = await _send(url, asked.prefix + asked.suffix, asked.written)
            tasks.create_task(one(number, asked, answer, warmth.epoch(name)))
    return cached


async def _send(url: str, ids: Sequence[int], tokens: int) -> Awaitable[int]:
    """Send a prompt; return what becomes its number of cached tokens."""
    parts = urlsplit(url)
    rid = f"play.{next(_names)}"
    sampling = GREEDY | {"max_new_tokens": tokens}
    body = json.dumps({"rid": rid, "input_ids": list(ids), "sampling_params": sampling}).encode()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24)
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()

    async def answer() -> int:
        whole = await reader.read()
        writer.close()
        await writer.wait_closed()
        found: int = json.loads(whole[whole.index(b"{") : whole.rindex(b"}") + 1])["meta_info"][
            "cached_tokens"
        ]
        return found

    return answer()


def shares(cached: Sequence[int], sequence: Sequence[Asked], page_size: int = 1) -> tuple[float, float]:
    """Return the hit rate, and how much of the ceiling was reached."""
    prompts = [len(asked.prefix) + len(asked.suffix) for asked in sequence]
    ceilings = [
        ceiling(asked.prefix, prompt, page_size) for asked, prompt in zip(sequence, prompts, strict=True)
    ]
    reached = sum(map(min, cached, ceilings))
    return sum(cached) / sum(prompts), reached / sum(ceilings)
