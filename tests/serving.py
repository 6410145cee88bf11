"""The stand-in for an SGLang server, for a `fafo` in another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fake_sglang import FakeSglang, Fault
from tests.helpers import MAIN, fafo


@contextmanager
def serving(fault: Fault | None = None, **settings: Any) -> Iterator[FakeSglang]:
    """Run the protocol's stand-in in a thread, for a `fafo` in another process."""
    server = FakeSglang(vocab_size=49_152, context_length=8_192, **settings)
    server.fault = fault
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
        yield server
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def pace(seconds: float) -> Fault:
    """Return a fault that makes every answer to an item take so long; warm-ups are quick."""

    async def wait(_: web.Request, body: dict[str, Any]) -> None:
        if not body["rid"].startswith("warm"):
            await asyncio.sleep(seconds)

    return wait


def use(folder: Path, server: FakeSglang, main: str = MAIN) -> Path:
    """Let a project ask the server, and build it."""
    main = main.replace('kind = "fake"', f'kind = "sglang"\nurls = ["{server.url}"]')
    (folder / "fafo.toml").write_text(main, "utf-8")
    fafo(folder, "build", "--quiet")
    return folder
