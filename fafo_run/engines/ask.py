"""What the servers of an engine say of themselves, for people who look: no run depends on it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import aiohttp

from fafo_build.errors import EngineError
from fafo_build.project.declaration import Engine
from fafo_run.engines.base import Capabilities
from fafo_run.engines.sglang import SglangEngine, server_urls

GLANCE = 5.0
"""Seconds for a look whether a server is ready."""


async def ask(spec: Engine) -> list[Capabilities | EngineError]:
    """Return what each server of an engine is, in the order of its URLs, or why it gives no answer.

    What it says of itself alone: nothing is known here of the model's vocabulary and context. Raises
    `EngineError` when `urls` aren't some.
    """
    return await asyncio.gather(*(_ask(spec, url) for url in server_urls(spec)))


async def ready(urls: Sequence[str]) -> list[bool]:
    """Return of each server whether it answers that it is well, right now."""
    return await asyncio.gather(*(_ready(url) for url in urls))


async def _ask(spec: Engine, url: str) -> Capabilities | EngineError:
    engine = SglangEngine(spec, url, vocab_size=sys.maxsize, context_length=sys.maxsize, eos_ids=())
    try:
        return await engine.start()
    except EngineError as error:
        return error
    finally:
        await engine.stop()


async def _ready(url: str) -> bool:
    limit = aiohttp.ClientTimeout(total=GLANCE)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(f"{url}/health", allow_redirects=False) as response,
        ):
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
