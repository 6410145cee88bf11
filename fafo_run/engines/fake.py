"""An engine without a model: deterministic, instant, with an honest cache of what it has seen.

It is for tests and for measuring fafo itself. Its outputs mean nothing; its counts are true of its radix
cache, so that everything that reads them can be tested.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable, Collection, Sequence

from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import (
    Answer,
    Capabilities,
    Completion,
    Engine,
    Prefix,
    Rejected,
    Request,
    Unavailable,
    WarmUp,
)
from fafo_run.engines.limits import BATCH, NO_TEXT, Prefixes, in_vocabulary, refusal
from fafo_run.engines.radix import RadixCache
from fafo_run.item import FinishReason, Ids

VERSION = "1"
"""Changes whenever the same request would get another answer."""

_STOP_EVERY = 32
"""On average one token in so many is a stop token."""

Faults = Callable[[Request], Exception | Rejected | None]


class FakeEngine(Engine):
    """Answers with ids that are a pure function of prompt, sampling parameters and seed."""

    def __init__(
        self,
        spec: declaration.Engine,
        *,
        vocab_size: int,
        context_length: int,
        eos_ids: Collection[int] = (),
        model: str = "fake",
        page_size: int = 1,
        capacity: int | None = 1 << 20,
        concurrency: int = 1,
        latency: float = 0.0,
        faults: Faults | None = None,
    ) -> None:
        """Nothing from `page_size` on can be set in fafo.toml.

        `capacity` is in tokens (None: no bound), `latency` in seconds per call of `generate`. `faults` is
        asked once per request: an exception it returns is raised by `generate`, a `Rejected` is answered.
        """
        self._prefixes = Prefixes()
        self._capabilities = Capabilities(
            engine="fake",
            version=VERSION,
            model=model,
            vocab_size=vocab_size,
            context_length=context_length,
            page_size=page_size,
            prefix_cache=True,
            batch=spec.max_running or BATCH,
            concurrency=concurrency,
            unable=NO_TEXT,
            settings={},
        )
        self._eos = tuple(sorted(eos_ids))
        self._latency = latency
        self._faults = faults
        self._running = False
        self.cache = RadixCache(page_size=page_size, capacity=capacity)

    async def start(self) -> Capabilities:
        """Return what was declared; there is nothing to start."""
        self._running = True
        return self._capabilities

    async def look(self) -> Capabilities:
        """Return what was declared. Raises `Unavailable` when the engine isn't running."""
        self._check_running()
        return self._capabilities

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        """Put the prefix into the cache. Raises `Unavailable` when the engine isn't running."""
        self._check_running()
        count, limits = len(prefix.ids), self._capabilities
        # Requests with such a prefix are refused one by one; no server would hold it.
        if count >= limits.context_length or not in_vocabulary(prefix.ids, limits.vocab_size):
            return WarmUp(count, 0, computed=False)
        cached = self.cache.match(prefix.ids[:-1])
        self.cache.insert(prefix.ids)
        return WarmUp(count, cached)

    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        """Answer as the contract says. Raises what `faults` returns, and `Unavailable` when not running."""
        self._check_running()
        started, clock = time.time(), time.perf_counter()
        await asyncio.sleep(self._latency)
        refused = [self._refuse(request) for request in requests]
        # As in one prefill batch of a server: its requests see the cache as it was before any of them.
        found = [
            (prompt, 0 if no else self.cache.match(prompt[:-1]))
            for request, no in zip(requests, refused, strict=True)
            for prompt in [request.prefix.ids + request.suffix]
        ]
        completions: list[Completion] = []
        for request, no, (prompt, cached) in zip(requests, refused, found, strict=True):
            if no is not None:
                completions.append(no)
                continue
            ids, reason = self._answer(prompt, request.sampling, request.seed)
            # The last token was never fed back, so a server has no state for it.
            self.cache.insert(prompt + ids[:-1])
            seconds = time.perf_counter() - clock
            completions.append(Answer(request.identity, ids, reason, cached, "", started, seconds))
        return completions

    async def stop(self) -> None:
        """Forget the cache."""
        self._running = False
        self.cache.clear()

    def _check_running(self) -> None:
        if not self._running:
            raise Unavailable("the fake engine isn't running")

    def _refuse(self, request: Request) -> Rejected | None:
        no = refusal(request, self._capabilities, self._prefixes)
        if no is not None or self._faults is None:
            return no
        fault = self._faults(request)
        if isinstance(fault, Exception):
            raise fault
        return fault

    def _answer(self, prompt: Ids, sampling: Sampling, seed: int) -> tuple[Ids, FinishReason]:
        stream = _stream(prompt, sampling, seed, sampling.max_new_tokens)
        ends = {*self._eos, *sampling.stop_token_ids}
        ids: list[int] = []
        for token, chance in stream:
            if self._eos and chance % _STOP_EVERY == 0:
                ids.append(self._eos[chance // _STOP_EVERY % len(self._eos)])
            else:
                ids.append(token % self._capabilities.vocab_size)
            if ids[-1] in ends:
                return tuple(ids), FinishReason("stop", ids[-1])
        return tuple(ids), FinishReason("length")


def _stream(prompt: Ids, sampling: Sampling, seed: int, count: int) -> list[tuple[int, int]]:
    """Return `count` pairs of 32-bit numbers: of prompt and penalties, and when sampling, of all.

    A shorter `count` gives the beginning of a longer one, as with a real model.
    """
    key = hashlib.shake_128(struct.pack(f"<{len(prompt)}q", *prompt))
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    if penalties != (0.0, 0.0, 1.0):
        key.update(repr(penalties).encode())
    if sampling.temperature > 0:
        how = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, seed)
        key.update(repr(how).encode())
    numbers = struct.unpack(f"<{2 * count}I", key.digest(8 * count))
    return list(zip(numbers[::2], numbers[1::2], strict=True))
