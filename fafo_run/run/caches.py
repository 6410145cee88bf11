"""Which caches a run would have, and how large: by what servers say that are up, by the flags of those that
fafo would start, or as given. Sends no work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from attrs import evolve, frozen

from fafo_build.errors import EngineError
from fafo_build.project import declaration
from fafo_run.engines.ask import ask
from fafo_run.engines.base import Capabilities
from fafo_run.engines.sglang_info import WAITING
from fafo_run.run.simulated_server import CacheSize

_RUNNING = 256
"""Requests that a server computes at once, where nobody says."""
_GIVEN = "as given"
"""Stands for the URL of a server whose cache was given and not asked for."""
_TO_BE = "to be launched"
_SAY = "say --cache-tokens and --page-size"
_FLAGS = {
    "--max-total-tokens": "tokens",
    "--page-size": "page_size",
    "--max-running-requests": "running",
    "--dp-size": "ranks",
    "--data-parallel-size": "ranks",
    "--chunked-prefill-size": "batch_tokens",
}
"""What the flags of a server say of its cache."""


@frozen
class Given:
    """What a person says of servers that aren't up."""

    cache_tokens: int | None = None
    page_size: int | None = None


@frozen
class ServerCache:
    """What is known of one server's cache, per data-parallel rank."""

    url: str
    tokens: int | None = None
    """How many tokens it holds; None when the server doesn't answer, or doesn't tell."""
    page_size: int = 1
    radix: bool = True
    """False when it computes every prompt whole."""
    ranks: int = 1
    running: int | None = None
    """The most requests that it computes at once; None when nobody says."""
    batch_tokens: int | None = None
    """The most tokens that it computes in one prefill batch; None when nobody says."""
    trouble: str = ""
    """Why its size isn't known, in a sentence that names it; empty when it is."""
    cure: str = ""
    """What to do about that."""

    def size(self, max_running: int | None) -> CacheSize:
        """Return what one rank can take of a run with so many requests in flight per server at most.

        Its `tokens` have to be known.
        """
        running = self.running or _RUNNING
        room = running + WAITING
        size = CacheSize(
            tokens=self.tokens or 0,
            page_size=self.page_size,
            running=running,
            in_flight=room if max_running is None else max(1, min(max_running // self.ranks, room)),
        )
        return evolve(size, batch_tokens=self.batch_tokens) if self.batch_tokens else size


def caches_of(spec: declaration.Engine, given: Given) -> tuple[ServerCache, ...]:
    """Return the caches of an engine's servers, in order; none where there is no server.

    One that says nothing raises nothing: its `trouble` says why. Raises `EngineError` for URLs that are none.
    """
    if given.cache_tokens is not None:
        count = max(1, len(spec.urls), spec.launch.replicas if spec.launch else 0)
        return (ServerCache(_GIVEN, given.cache_tokens, given.page_size or 1),) * count
    if spec.kind != "sglang" or not (spec.urls or spec.launch):
        return ()
    found = _declared(spec.launch) if spec.launch is not None else _asked(spec)
    if given.page_size is not None:
        found = [evolve(each, page_size=given.page_size) for each in found]
    return tuple(found)


def by_rank(servers: Iterable[ServerCache]) -> dict[str, ServerCache]:
    """Return the cache of each rank, by the rank's name.

    That is the one that a run gives it (`Rank.name`), where the servers have URLs; else a number is added.
    """
    found: dict[str, ServerCache] = {}
    for server in servers:
        for rank in range(server.ranks):
            name = server.url if server.ranks == 1 else f"{server.url}#{rank}"
            found[name if name not in found else f"{name}, {len(found) + 1}"] = server
    return found


def _asked(spec: declaration.Engine) -> list[ServerCache]:
    answers = asyncio.run(ask(spec))
    return [
        _of_error(url.rstrip("/"), answer) if isinstance(answer, EngineError) else cache_of(answer)
        for url, answer in zip(spec.urls, answers, strict=True)
    ]


def _of_error(url: str, error: EngineError) -> ServerCache:
    problem = error.problems[0]
    return ServerCache(url, trouble=problem.message, cure=f"{_SAY}, or mend it: {problem.cure}")


def cache_of(answer: Capabilities) -> ServerCache:
    """Return the cache of a server that says so much of itself."""
    told = answer.cache_tokens is not None
    return ServerCache(
        answer.server,
        tokens=answer.cache_tokens,
        page_size=answer.page_size,
        radix=answer.prefix_cache,
        ranks=answer.ranks,
        running=answer.running,
        batch_tokens=answer.batch_tokens,
        trouble="" if told else f"{answer.server} doesn't say how many tokens its cache holds",
        cure="" if told else _SAY,
    )


def _declared(launch: declaration.Launch) -> list[ServerCache]:
    """Return what servers that fafo would start are going to have, as far as their flags say."""
    said: dict[str, Any] = {}
    for word, after in pairwise((*launch.args, "")):
        name, _, value = word.partition("=")
        value = value or after
        if name in _FLAGS and value.isdecimal() and int(value) > 0:
            said[_FLAGS[name]] = int(value)
    each = ServerCache(_TO_BE, radix="--disable-radix-cache" not in launch.args, **said)
    if each.tokens is None:
        each = evolve(
            each,
            trouble="the servers aren't up, and launch.args has no --max-total-tokens",
            cure=f"{_SAY}, or start them: `fafo engine up`",
        )
    return [each] * launch.replicas
