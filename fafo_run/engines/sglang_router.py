"""A router in front of SGLang servers: what it says, and what the whole of them is to fafo. No network.

sglang-router 0.3.2 answers `/get_server_info` with counts of its own, and names its servers at `/workers`.
"""

from __future__ import annotations

import msgspec
from attrs import evolve

from fafo_run.engines.base import Capabilities
from fafo_run.engines.sglang_info import WAITING
from fafo_run.engines.sglang_json import read

UNKNOWN_VERSION = "unknown"
UNKNOWN = msgspec.json.encode({"version": UNKNOWN_VERSION, "model_path": "unknown"})
"""Stands for the `/server_info` of servers that can't be reached past their router: SGLang's defaults."""


class _Router(msgspec.Struct):
    router_manager: bool = False


class _Worker(msgspec.Struct):
    url: str


class _Workers(msgspec.Struct):
    workers: list[_Worker]


_router = msgspec.json.Decoder(_Router)
_workers = msgspec.json.Decoder(_Workers)


def is_router(server_info: bytes) -> bool:
    """Return whether what answered as a server is a router. Raises `MalformedError`."""
    return read(_router, server_info).router_manager


def workers(body: bytes) -> list[str]:
    """Return the URLs of a router's servers, in an order that doesn't change. Raises `MalformedError`."""
    return sorted(worker.url.rstrip("/") for worker in read(_workers, body).workers)


def together(one: Capabilities, count: int, max_running: int | None) -> Capabilities:
    """Return what `count` servers such as this one are behind a router.

    Which of them computes a request, and so whose cache it finds, is the router's choice.
    """
    running = one.running * count
    room = running + WAITING
    return evolve(
        one,
        ranks=1,
        running=running,
        concurrency=room if max_running is None else min(max_running, room),
        cache_tokens=None,
        settings=one.settings | {"router_workers": count},
    )
