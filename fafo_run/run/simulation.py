"""What the cache of one server would serve of a run's prompts. No network, no clock.

It plays fafo in front of a simulated server: so many requests in flight, in the order of the run, and one
finished warm-up before the items of a prefix, again after it was evicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from attrs import frozen

from fafo_run.engines.radix import Hold, RadixCache
from fafo_run.item import Ids
from fafo_run.run.records import ceiling
from fafo_run.run.simulated_server import CacheSize, Sent, SimulatedServer
from fafo_run.run.warmth import Warmth, Why


@frozen(eq=False)
class Asked:
    """One prompt of the sequence."""

    prefix: Ids
    """Prompts of one class have the same object."""
    suffix: Ids
    at_most: int
    """`max_new_tokens`."""
    written: int
    """How many tokens the output is expected to have; 1 or more."""
    passed: int = 0
    """Tokens that others of its class, which are left out here, would have put into the cache just before."""


@frozen
class Simulated:
    """What became of the sequence."""

    cached: tuple[int, ...]
    """Per prompt, in order: how many of its tokens came from the cache."""
    warm_ups: int
    again: int
    """How many of these warmed up a prefix that had been evicted."""
    retracted: int
    """How often a running request had to give back its memory."""
    prefixes: int
    """The most prefixes whose prompts were in flight at the same time."""
    prefix_tokens: int
    """The most tokens that the prefixes in flight at the same time had, shared beginnings counted once."""
    running: int
    """The most requests that ran at the same time."""
    running_tokens: int
    """The most tokens that running requests had besides their prefixes."""


def simulate(sequence: Iterable[Asked], size: CacheSize) -> Simulated:
    """Return what the server's cache serves of these prompts, cold at the beginning.

    Takes some 50 µs per prompt. A prompt that could never fit is admitted all the same, alone.
    """
    server = SimulatedServer(size)
    client = _Client(server, size)
    source = iter(sequence)
    while True:
        client.feed(source)
        if server.admit():
            continue
        ended = server.advance()
        if ended is None:
            return client.outcome()
        for request in ended:
            client.answered(request)


class _Client:
    """What a feeder of a run does."""

    def __init__(self, server: SimulatedServer, size: CacheSize) -> None:
        self._server = server
        self._size = size
        self._numbers = itertools.count()
        self._items: dict[int, tuple[Asked, int, int]] = {}
        """By the number of the request: what was asked, its place in the sequence, its prefix's epoch."""
        self._warming: Asked | None = None
        """What waits for the warm-up that is under way."""
        self._warmth = Warmth()
        self._cached: list[int] = []
        self._warm_ups = self._again = 0
        self._wanted: dict[str, int] = {}
        """How many prompts of each prefix are in flight."""
        self._needed = RadixCache()
        """The prefixes that are in flight, and nothing else."""
        self._holds: dict[str, Hold] = {}
        self._most_prefixes = self._most_prefix_tokens = 0

    def feed(self, source: Iterator[Asked]) -> None:
        """Send what may be in flight; a prefix that isn't warm is warmed up first, and awaited."""
        while len(self._items) < self._size.in_flight and self._warming is None:
            asked = next(source, None)
            if asked is None:
                return
            if asked.passed:
                self._server.age(asked.passed, asked.prefix)
            if len(asked.prefix) < self._size.page_size or self._warmth.is_warm(_name(asked.prefix)):
                self._send(asked)
            else:
                self._warming = asked
                self._want(asked.prefix)
                self._server.send(Sent(next(self._numbers), asked.prefix, len(asked.prefix), 1, 1))

    def answered(self, request: Sent) -> None:
        """Take an answer, and judge by it whether its prefix is still there."""
        if request.number not in self._items:
            self._warmed()
            return
        asked, place, epoch = self._items.pop(request.number)
        self._unwant(asked.prefix)
        found = self._cached[place] = request.cached or 0
        limit = ceiling(asked.prefix, len(asked.prefix) + len(asked.suffix), self._size.page_size)
        self._warmth.seen(_name(asked.prefix), epoch, whole=found >= limit)

    def outcome(self) -> Simulated:
        """Return what was counted."""
        return Simulated(
            cached=tuple(self._cached),
            warm_ups=self._warm_ups,
            again=self._again,
            retracted=self._server.retracted,
            prefixes=self._most_prefixes,
            prefix_tokens=self._most_prefix_tokens,
            running=self._server.most_running,
            running_tokens=self._server.most_running_tokens,
        )

    def _send(self, asked: Asked) -> None:
        number = next(self._numbers)
        prompt = asked.prefix + asked.suffix
        self._items[number] = asked, len(self._cached), self._warmth.epoch(_name(asked.prefix))
        self._cached.append(0)
        self._want(asked.prefix)
        self._server.send(Sent(number, prompt, len(asked.prefix), asked.at_most, asked.written))

    def _warmed(self) -> None:
        asked, self._warming = self._warming, None
        if asked is not None:
            self._warm_ups += 1
            self._again += self._warmth.why(_name(asked.prefix)) is Why.EVICTED
            self._warmth.warmed(_name(asked.prefix))
            self._send(asked)
            self._unwant(asked.prefix)

    def _want(self, prefix: Ids) -> None:
        name = _name(prefix)
        self._wanted[name] = self._wanted.get(name, 0) + 1
        if self._wanted[name] == 1:
            self._needed.insert(prefix)
            self._holds[name] = self._needed.hold(prefix)
            self._most_prefixes = max(self._most_prefixes, len(self._wanted))
            self._most_prefix_tokens = max(self._most_prefix_tokens, self._needed.held)

    def _unwant(self, prefix: Ids) -> None:
        name = _name(prefix)
        self._wanted[name] -= 1
        if not self._wanted[name]:
            del self._wanted[name]
            self._needed.release(self._holds.pop(name))
            self._needed.evict(self._needed.size)


def _name(prefix: Ids) -> str:
    return str(id(prefix))
