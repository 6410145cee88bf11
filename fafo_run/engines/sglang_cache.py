"""Asks SGLang servers how large their caches are: one GET each, for plans. It sends them no work.

What a run may know of a server is `sglang`'s affair; this works without a model and without a loop.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import msgspec
from attrs import evolve, frozen

from fafo_build.project import declaration

_PATHS = ("/server_info", "/get_server_info")
"""The second is what versions before 0.5.6 have."""
_WAIT = 10.0
"""Seconds for an answer."""
_AT_ONCE = 16
"""Servers that are asked at the same time."""

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
class ServerCache:
    """What one server says of its cache, per data-parallel rank."""

    url: str
    tokens: int | None = None
    """How many tokens it holds; None when the server doesn't answer, or doesn't tell."""
    page_size: int = 1
    radix: bool = True
    """False when it computes every prompt whole."""
    ranks: int = 1
    running: int | None = None
    """The most requests that it computes at once; None when it doesn't tell."""
    batch_tokens: int | None = None
    """The most tokens that it computes in one prefill batch; None when it doesn't tell."""
    trouble: str = ""
    """Why nothing is known of it; empty when it answered."""


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None


class _Info(msgspec.Struct):
    max_total_num_tokens: int | None = None
    page_size: int | None = None
    disable_radix_cache: bool = False
    dp_size: int = 1
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int | None = None
    internal_states: list[_State] = []


def ask_all(spec: declaration.Engine) -> list[ServerCache]:
    """Return what each server of an engine says, in the order of its URLs. One that says nothing raises
    nothing: its `trouble` says why."""
    key = os.environ.get(spec.api_key_env, "").strip() if spec.api_key_env else ""
    urls: Sequence[str] = [url.rstrip("/") for url in spec.urls]
    if not urls:
        return []
    with ThreadPoolExecutor(min(len(urls), _AT_ONCE)) as pool:
        return list(pool.map(lambda url: ask(url, key), urls))


def declared(launch: declaration.Launch) -> list[ServerCache]:
    """Return what servers that fafo would start are going to have, as far as their flags say."""
    said: dict[str, Any] = {}
    for word, after in pairwise((*launch.args, "")):
        name, _, value = word.partition("=")
        value = value or after
        if name in _FLAGS and value.isdecimal() and int(value) > 0:
            said[_FLAGS[name]] = int(value)
    radix = "--disable-radix-cache" not in launch.args
    trouble = "" if "tokens" in said else "it isn't up, and its args have no --max-total-tokens"
    each = ServerCache("to be launched", trouble=trouble, radix=radix)
    return [evolve(each, **said)] * launch.replicas


def ask(url: str, key: str = "") -> ServerCache:
    """Return what the server at `url` says; `key` is its API key, if it has one."""
    # Without the proxies that the environment names, as in a run.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    trouble = ""
    for path in _PATHS:
        try:
            request = urllib.request.Request(
                url + path, headers={"Authorization": f"Bearer {key}"} if key else {}
            )
            with opener.open(request, timeout=_WAIT) as response:
                return _read(url, response.read())
        except urllib.error.HTTPError as error:
            trouble = f"{path} answers HTTP {error.code}"
            if error.code != 404:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            trouble = f"no answer: {getattr(reason, 'strerror', None) or reason}"
            break
    return ServerCache(url, trouble=trouble)


def _read(url: str, body: bytes) -> ServerCache:
    try:
        info = msgspec.json.decode(body, type=_Info)
    except msgspec.MsgspecError as error:
        return ServerCache(url, trouble=f"not an SGLang server's answer: {error}")
    states = (state.effective_max_running_requests_per_dp for state in info.internal_states)
    per_rank = [most for most in states if most is not None]
    batches = (info.chunked_prefill_size, info.max_prefill_tokens)
    return ServerCache(
        url,
        tokens=info.max_total_num_tokens,
        page_size=info.page_size or 1,
        radix=not info.disable_radix_cache,
        ranks=max(1, info.dp_size),
        running=min(per_rank) if per_rank else info.max_running_requests,
        batch_tokens=min((most for most in batches if most is not None and most > 0), default=None),
        trouble="" if info.max_total_num_tokens else "it doesn't say how many tokens its cache holds",
    )
