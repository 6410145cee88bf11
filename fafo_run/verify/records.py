"""Adds up, in one pass over the records, what no index keeps: tokens by hour, and the misses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import gcd

from attrs import define

from fafo_run.item import Output, Provenance, Record
from fafo_run.run.server import IN_PROCESS
from fafo_run.verify.sums import Hits, Misses

HOUR = 3600
"""Seconds."""

Pair = tuple[str, str]
"""A class and a server."""


@define
class _Cell:
    """Sums over the outputs of one provenance at one server in one hour."""

    pair: Pair
    hour: int
    artifact: str
    items: int = 0
    prompt: int = 0
    cached: int = 0
    ceiling: int = 0
    missed: int = 0
    lacking: int = 0
    longest: int = 0
    unit: int = 0
    restart: int = 0
    evicted: int = 0


class RecordSums:
    """Is shown every record. Takes a few hundred bytes per class, source, server and hour."""

    def __init__(
        self, owner: Callable[[Provenance], str | None], why: Callable[[str, str, float], str | None]
    ) -> None:
        """`owner` is the class that stands for a record's work now; of others nothing is counted.

        `why` says for server, artifact and time of a miss what it came from, as `Losses.why` does.
        """
        self._owner = owner
        self._why = why
        # By the object of a provenance, which the records of a segment share; kept, so that ids stay theirs.
        self._cells: dict[tuple[int, str, int], tuple[Provenance, _Cell | None]] = {}

    def see(self, record: Record) -> None:
        """Count one record; failures aren't."""
        outcome = record.outcome
        if not isinstance(outcome, Output):
            return
        said, hour = record.provenance, int(record.started // HOUR)
        server = record.server or IN_PROCESS
        known = self._cells.get((id(said), server, hour))
        if known is None:
            name = self._owner(said)
            cell = None if name is None else _Cell((name, server), hour, said.artifact)
            known = self._cells[id(said), server, hour] = said, cell
        cell = known[1]
        if cell is None:
            return
        cached, ceiling = outcome.cached_tokens, outcome.expected_cached_tokens
        cell.items += 1
        cell.prompt += record.prompt_tokens
        cell.cached += cached
        cell.ceiling += ceiling
        if cached < ceiling:
            self._miss(cell, ceiling - cached, cached, record.started)

    def _miss(self, cell: _Cell, lacking: int, cached: int, started: float) -> None:
        cell.missed += 1
        cell.lacking += lacking
        cell.longest = max(cell.longest, lacking)
        cell.unit = gcd(cell.unit, cached)
        why = self._why(cell.pair[1], cell.artifact, started)
        if why == "restart":
            cell.restart += lacking
        elif why == "evicted":
            cell.evicted += lacking

    def by_hour(self) -> Mapping[str, Hits]:
        """Return the sums by hour, the oldest first."""
        found: defaultdict[int, Hits] = defaultdict(Hits)
        for _, cell in self._cells.values():
            if cell is not None:
                reached = cell.ceiling - cell.lacking
                found[cell.hour] += Hits(cell.items, cell.prompt, cell.cached, cell.ceiling, reached)
        return {_name(hour): found[hour] for hour in sorted(found)}

    def misses(self) -> Mapping[Pair, Misses]:
        """Return what was missed, by class and server; those that missed nothing aren't in it."""
        found: dict[Pair, Misses] = {}
        for _, cell in self._cells.values():
            if cell is not None and cell.missed:
                one = Misses(cell.missed, cell.lacking, cell.longest, cell.unit, cell.restart, cell.evicted)
                found[cell.pair] = found.get(cell.pair, Misses()) + one
        return found


def _name(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%dT%H:00Z")
