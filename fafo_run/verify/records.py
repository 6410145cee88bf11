"""Adds up, in one pass over the records, what no index keeps: tokens by hour, and the misses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from attrs import Factory, define

from fafo_run.item import Output, Provenance, Record
from fafo_run.results.summary import Counts
from fafo_run.run.server import IN_PROCESS
from fafo_run.verify.sums import Hits, Misses, Pair

HOUR = 3600
"""Seconds."""


@define
class _Cell:
    """Sums over the outputs of one provenance at one server in one hour."""

    pair: Pair
    hour: int
    artifact: str
    counts: Counts = Factory(Counts)
    misses: Misses = Factory(Misses)


class RecordSums:
    """Is shown every record. Takes some thousand bytes per segment of the results, server and hour."""

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
        cell.counts.see(record)
        cached, lacking = outcome.cached_tokens, outcome.expected_cached_tokens - outcome.cached_tokens
        if lacking > 0:
            why = self._why(server, cell.artifact, record.started)
            cell.misses += Misses(
                items=1,
                tokens=lacking,
                longest=lacking,
                unit=cached,
                restart=lacking if why == "restart" else 0,
                evicted=lacking if why == "evicted" else 0,
            )

    def by_hour(self) -> Mapping[str, Hits]:
        """Return the sums by hour, the oldest first."""
        found: defaultdict[int, Hits] = defaultdict(Hits)
        for cell in self._found():
            found[cell.hour] += Hits.of(cell.counts)
        return {_name(hour): found[hour] for hour in sorted(found)}

    def misses(self) -> Mapping[Pair, Misses]:
        """Return what was missed, by class and server; those that missed nothing aren't in it."""
        found: defaultdict[Pair, Misses] = defaultdict(Misses)
        for cell in self._found():
            if cell.misses.items:
                found[cell.pair] += cell.misses
        return dict(found)

    def _found(self) -> Iterator[_Cell]:
        return (cell for _, cell in self._cells.values() if cell is not None)


def _name(hour: int) -> str:
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%dT%H:00Z")
