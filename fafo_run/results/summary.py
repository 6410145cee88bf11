"""Counts and token sums over records. Pure: no files, no index.

A `Tally` is a sum that records can be added to and taken from; a `Summary` is what people are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import Factory, asdict, define, frozen

from fafo_run.item import Failure, Provenance, Record
from fafo_run.log.payload import decode, encode

_RECENT = 256


@frozen
class Group:
    """What the records of one line of a summary share."""

    class_name: str
    source: str
    artifact: str
    sampling_hash: str
    model_fingerprint: str
    server: str


@define
class Counts:
    """Sums over records. Token sums and finish reasons are over outputs only."""

    outputs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: int = 0
    credited_tokens: int = 0
    """Per output the smaller of cached and expected: a surplus of one never hides the lack of another."""
    output_tokens: int = 0
    empty_outputs: int = 0
    """Outputs without a token but the one that ended them."""
    superseded: int = 0
    """Records that don't count any more: a failure whose item has an output now."""
    failures: Counter[str] = Factory(Counter)
    """By failure code."""
    finish_reasons: Counter[str] = Factory(Counter)
    """By type."""

    @property
    def failed(self) -> int:
        """All failures."""
        return sum(self.failures.values())

    def see(self, record: Record) -> None:
        """Count one record."""
        outcome = record.outcome
        if isinstance(outcome, Failure):
            self.failures[outcome.code.value] += 1
            return
        cached, expected = outcome.cached_tokens, outcome.expected_cached_tokens
        self.outputs += 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += cached
        self.expected_cached_tokens += expected
        self.credited_tokens += cached if cached < expected else expected
        tokens = len(outcome.ids)
        self.output_tokens += tokens
        if tokens <= 1 and outcome.is_empty:
            self.empty_outputs += 1
        self.finish_reasons[outcome.finish_reason.type] += 1

    def add(self, other: Counts, sign: int = 1) -> None:
        """Add another's sums, or take them away with `sign` -1."""
        self.outputs += sign * other.outputs
        self.prompt_tokens += sign * other.prompt_tokens
        self.cached_tokens += sign * other.cached_tokens
        self.expected_cached_tokens += sign * other.expected_cached_tokens
        self.credited_tokens += sign * other.credited_tokens
        self.output_tokens += sign * other.output_tokens
        self.empty_outputs += sign * other.empty_outputs
        self.superseded += sign * other.superseded
        _add(self.failures, other.failures, sign)
        _add(self.finish_reasons, other.finish_reasons, sign)


def _add(counter: Counter[str], other: Mapping[str, int], sign: int) -> None:
    for name, count in other.items():
        counter[name] += sign * count
        if not counter[name]:
            del counter[name]


@frozen
class Summary:
    """What the results hold."""

    groups: Mapping[Group, Counts]
    undecodable: int
    """Entries whose checksum holds and which can't be read all the same."""

    @property
    def total(self) -> Counts:
        """The sums over all groups."""
        total = Counts()
        for counts in self.groups.values():
            total.add(counts)
        return total


class Tally:
    """A sum per group. Not thread-safe."""

    def __init__(self) -> None:
        self.groups: dict[Group, Counts] = {}
        self.undecodable = 0
        # The counts of provenance that was just met, by object: the objects are kept, so ids stay theirs.
        self._recent: dict[tuple[int, str], tuple[Provenance, Counts]] = {}

    @classmethod
    def of(cls, record: Record) -> Tally:
        """Return the tally of one record."""
        tally = cls()
        tally.add(record)
        return tally

    def add(self, record: Record) -> None:
        """Count one record."""
        self._counts(record.provenance, record.server).see(record)

    def add_all(self, other: Tally, sign: int = 1) -> None:
        """Add another tally, or take it away with `sign` -1."""
        self.undecodable += sign * other.undecodable
        for group, counts in other.groups.items():
            self.groups.setdefault(group, Counts()).add(counts, sign)

    def supersede(self, lost: Tally) -> None:
        """Take away the sums of records that don't count any more, and count these as superseded."""
        self.add_all(lost, -1)
        for group, counts in lost.groups.items():
            self.groups[group].superseded += counts.outputs + counts.failed

    def summary(self) -> Summary:
        """Return the sums as they are now; what is added later doesn't change them."""
        copy = Tally()
        copy.add_all(self)
        return Summary(copy.groups, copy.undecodable)

    def pack(self) -> bytes:
        """Return the tally as bytes for the index and the hints; what was unpacked before stays as it is."""
        groups = [(list(asdict(group).values()), asdict(counts)) for group, counts in self.groups.items()]
        return encode((self.undecodable, groups))

    def _counts(self, said: Provenance, server: str) -> Counts:
        known = self._recent.get((id(said), server))
        if known is not None:
            return known[1]
        group = Group(
            said.class_name, said.source, said.artifact, said.sampling_hash, said.model_fingerprint, server
        )
        counts = self.groups.setdefault(group, Counts())
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent[id(said), server] = (said, counts)
        return counts

    @classmethod
    def unpack(cls, data: bytes) -> Tally:
        """Return what `pack` packed. Raises `TypeError` or `ValueError` for other bytes."""
        tally = cls()
        tally.undecodable, groups = decode(data)
        for group, counts in groups:
            counts |= {name: Counter(counts[name]) for name in ("failures", "finish_reasons")}
            tally.groups[Group(*group)] = Counts(**counts)
        return tally
