"""All that the explanation of a hit rate can rest on, gathered. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from fafo_run.item import Ids
from fafo_run.verify.counters import Comparison
from fafo_run.verify.lives import Life
from fafo_run.verify.sums import Hits, Misses, Pair


@frozen
class Known:
    """All that an explanation can rest on."""

    hits: Mapping[Pair, Hits]
    """Finished items, by class and server."""
    misses: Mapping[Pair, Misses]
    lives: Sequence[Life]
    prefixes: Mapping[str, Ids]
    """By artifact, of all classes of the view."""
    artifacts: Mapping[str, str]
    """By class."""
    outputs: Mapping[str, int]
    """By class: how many tokens an output has, at most."""
    counters: Mapping[str, Comparison]
    """By server."""
    stale: frozenset[str]
    """Classes that aren't baked as they are declared now."""

    def at(self, server: str) -> list[Life]:
        """Return the lives of one server."""
        return [life for life in self.lives if life.server == server]
