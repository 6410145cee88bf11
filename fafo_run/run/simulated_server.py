"""An SGLang server's scheduler and prefix cache, without a model and without time.

It plays the scheduler of 0.5.23 as far as that decides what is cached. Requests are admitted in the order in
which they come, several in one batch, as memory allows; a batch doesn't see what it computes itself. Running
requests hold their prompts and write a token per step. What nobody holds is forgotten, the least recently
used first; and those that outgrow the memory go back and wait.
"""

from __future__ import annotations

import heapq
from collections import deque

from attrs import define, frozen

from fafo_run.engines.radix import Hold, RadixCache
from fafo_run.item import Ids

_RATIO, _LEAST_RATIO, _RATIO_STEPS = 0.7, 0.098, 600
"""Of the tokens that running requests may still write, the share that SGLang keeps free for them when it
admits others: at the beginning, at the end, and in how many steps it falls (new_token_ratio).
"""
_AHEAD = 20
"""Tokens that it expects of each request beyond what they have written, when memory has run out."""
_CLIP = 4_096
"""Of a request's `max_new_tokens` no more than this counts when it is admitted."""
_LONGEST = 1 << 24
"""More tokens than any output has."""


@frozen
class CacheSize:
    """What a server's cache and scheduler can take; per data-parallel rank."""

    tokens: int
    page_size: int
    running: int
    """The most requests that it computes at once."""
    in_flight: int
    """The most requests that fafo has there at once, waiting ones included."""
    batch_tokens: int = 8_192
    """The most tokens that it computes in one prefill batch."""


@define(eq=False)
class Sent:
    """A request at the server."""

    number: int
    """No other one's."""
    prompt: Ids
    """With what it had written when it was sent back to wait."""
    prefix_tokens: int
    at_most: int
    """`max_new_tokens`."""
    written: int
    """How many tokens it will write; 1 or more."""
    cached: int | None = None
    """How many tokens of the prompt came from the cache when it was first admitted; None before."""
    wrote: int = 0
    """How many tokens it had written when it was sent back to wait."""
    hold: Hold | None = None
    started: int = 0
    """The step in which it was admitted."""


class SimulatedServer:
    """One rank of a server."""

    def __init__(self, size: CacheSize) -> None:
        self._size = size
        self._cache = RadixCache(page_size=size.page_size)
        self._waiting: deque[Sent] = deque()
        self._running: list[tuple[int, int, Sent]] = []
        """A heap: the step in which it ends, a tie-breaker, the request."""
        self._step = self._order = 0
        self._ratio = _RATIO
        self._is_full = False
        """Whether the next one that waits has no room until one of those that run has ended."""
        self._grown = 0
        """Tokens that running requests hold and that are in no tree: what they have written."""
        self._own = self._at_most = self._started = 0
        """Sums over the running requests: of their own prompt tokens, of what they may write, of their first
        steps."""
        self.retracted = 0
        """How often a running request had to give back its memory."""
        self.most_running = 0
        self.most_running_tokens = 0
        """The most tokens that running requests had besides their prefixes."""

    def send(self, request: Sent) -> None:
        """Let a request wait behind the others."""
        self._waiting.append(request)

    def age(self, tokens: int, prefix: Ids) -> None:
        """Forget what would have been forgotten if others with this prefix had put so many tokens into the
        cache.
        """
        hold = self._cache.hold(prefix)
        self._cache.evict(min(tokens, self._cache.size - self._cache.held))
        self._cache.release(hold)

    def admit(self) -> bool:
        """Start one batch of waiting requests; False when none can start."""
        if self._is_full:
            return False
        batch: list[Sent] = []
        size, budget, room = self._size, self._size.batch_tokens, self._room()
        while self._waiting and len(self._running) + len(batch) < size.running and budget > 0:
            request = self._waiting[0]
            found = self._cache.match(request.prompt[:-1])
            before = self._cache.held
            hold = self._cache.hold(request.prompt[:found])
            room -= self._cache.held - before
            fresh = len(request.prompt) - found
            needed = fresh + min(request.at_most - request.wrote, _CLIP) + size.page_size
            if needed >= room and (batch or self._running):
                self._cache.release(hold)
                # SGLang looks again when one has ended.
                self._is_full = True
                break
            self._waiting.popleft()
            request.hold = hold
            batch.append(request)
            room -= needed
            budget -= fresh
            if request.cached is None:
                request.cached = found
        self._make_room(size.batch_tokens - budget)
        for request in batch:
            self._start(request)
        return bool(batch)

    def advance(self) -> list[Sent] | None:
        """Decode until the next request ends, or the memory does; return what has ended. None: none runs."""
        count = len(self._running)
        if not count:
            return None
        steps = max(0, self._running[0][0] - self._step)
        free = (self._size.tokens - self._cache.held - self._grown) // count
        runs_out = steps > free and count > 1
        if runs_out:
            steps = max(0, free)
        self._step += steps
        self._grown += steps * count
        self._ratio = max(_LEAST_RATIO, self._ratio - steps * (_RATIO - _LEAST_RATIO) / _RATIO_STEPS)
        self._make_room(0)
        self._note()
        if runs_out:
            self._retract()
        ended = []
        while self._running and self._running[0][0] <= self._step:
            ended.append(heapq.heappop(self._running)[2])
            self._finish(ended[-1])
        return ended

    def _room(self) -> float:
        """Return how many tokens SGLang would give to new requests."""
        left = self._at_most + self._started - self._step * len(self._running)
        return self._size.tokens - self._cache.held - self._grown - max(left, 0) * self._ratio

    def _start(self, request: Sent) -> None:
        self._cache.insert(request.prompt)
        hold = self._cache.hold(request.prompt)
        if request.hold is not None:
            self._cache.release(request.hold)
        request.hold, request.started = hold, self._step
        self._count(request, 1)
        self._order += 1
        # The first token comes with the prompt.
        end = self._step + request.written - request.wrote - 1
        heapq.heappush(self._running, (end, self._order, request))
        self._note()

    def _retract(self) -> None:
        """Take the memory of the request that has written least: the one that began last."""
        at = max(range(len(self._running)), key=lambda at: self._running[at][2].started)
        request = self._running.pop(at)[2]
        heapq.heapify(self._running)
        self._stop(request)
        wrote = self._step - request.started
        request.prompt += _answer(request, wrote)
        request.wrote += wrote
        self._waiting.append(request)
        self.retracted += 1
        # From now on SGLang expects of all what these have written by now, and a little more.
        count = len(self._running)
        written = self._step * count - self._started
        self._ratio = min(1.0, (written + _AHEAD * count) / (self._at_most + 1))

    def _finish(self, request: Sent) -> None:
        self._stop(request)
        # There is nothing in the cache for the last token: it was never read.
        self._cache.insert(request.prompt + _answer(request, request.written - request.wrote - 1))
        self._make_room(0)

    def _stop(self, request: Sent) -> None:
        if request.hold is not None:
            self._cache.release(request.hold)
        request.hold = None
        self._is_full = False
        self._count(request, -1)
        self._grown -= self._step - request.started

    def _count(self, request: Sent, sign: int) -> None:
        self._own += sign * (len(request.prompt) - request.prefix_tokens)
        self._at_most += sign * min(request.at_most - request.wrote, _CLIP)
        self._started += sign * request.started
        # What fills no page is in no tree.
        self._grown += sign * (len(request.prompt) % self._size.page_size)

    def _make_room(self, tokens: int) -> None:
        """Forget what nobody holds until so many more tokens fit."""
        self._cache.evict(self._cache.size + self._grown + tokens - self._size.tokens)

    def _note(self) -> None:
        self.most_running = max(self.most_running, len(self._running))
        self.most_running_tokens = max(self.most_running_tokens, self._own + self._grown)


def _answer(request: Sent, count: int) -> Ids:
    """Return the next made-up ids of an output: of no other output, and of no prompt."""
    first = -1 - request.wrote - (request.number + 1) * _LONGEST
    return tuple(range(first, first - count, -1))
