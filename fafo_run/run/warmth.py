"""Which prefixes the cache of one rank holds, as far as this run has seen."""

from __future__ import annotations

from enum import Enum

from attrs import define


class Why(Enum):
    """What a warm-up is for."""

    FIRST = "first"
    RESTART = "restart"
    """The server was away, and may be cold."""
    EVICTED = "evicted"
    """An item found less in the cache than its ceiling, though its prefix had been warm."""


@define
class _Prefix:
    epoch: int = 0
    """How many warm-ups have finished."""
    warm: bool = False
    hit: bool = False
    """Whether an item found all of it since the last warm-up."""
    why: Why = Why.FIRST


class Warmth:
    """One finished warm-up per prefix, before its first burst, and again when the prefix is seen to be gone.

    SGLang computes a new prefix once per request of a prefill batch, so that four requests that arrive
    together share nothing; only a prefix whose warm-up has finished is shared.
    """

    def __init__(self) -> None:
        self._prefixes: dict[str, _Prefix] = {}

    def is_warm(self, artifact: str) -> bool:
        """Return whether the prefix of an artifact is taken for cached."""
        found = self._prefixes.get(artifact)
        return found is not None and found.warm

    def epoch(self, artifact: str) -> int:
        """Return how many warm-ups of it have finished: what is sent now is judged by it."""
        return self._prefixes[artifact].epoch if artifact in self._prefixes else 0

    def why(self, artifact: str) -> Why:
        """Return what the next warm-up of it is for."""
        return self._prefixes[artifact].why if artifact in self._prefixes else Why.FIRST

    def warmed(self, artifact: str) -> None:
        """A warm-up has finished."""
        found = self._prefixes.setdefault(artifact, _Prefix())
        found.epoch += 1
        found.warm, found.hit = True, False

    def seen(self, artifact: str, epoch: int, *, whole: bool) -> bool:
        """An item that was sent in `epoch` found its ceiling in the cache, or didn't (`whole` False).

        Returns True when that shows that the prefix has gone. Where no item has found it since the last
        warm-up, another one would be as futile: the cache may be too small, or may not keep such prefixes.
        """
        found = self._prefixes.get(artifact)
        if found is None or found.epoch != epoch or not found.warm:
            return False
        if whole:
            found.hit = True
            return False
        if not found.hit:
            return False
        found.warm, found.why = False, Why.EVICTED
        return True

    def forget(self) -> None:
        """Take nothing for warm any more: the server was away."""
        for found in self._prefixes.values():
            found.warm, found.why = False, Why.RESTART
