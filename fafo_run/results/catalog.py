"""Decides which record of an identity counts: an output, else the failure of the latest retry.

Sealed segments are in the index, the others in memory: some 180 bytes per record. It writes nothing but the
index. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from fafo_run.results.files import ResultsFiles
from fafo_run.results.index import Merged
from fafo_run.results.place import OUTPUT_RANK, Place, identities, places
from fafo_run.results.summary import Summary, Tally
from fafo_run.results.table import Noted, Table, Tail

_BATCH = 1000


class Places(Protocol):
    """An index, to read: the same for whatever segments it holds, in whatever order it took them in.

    All raise `UnusableIndexError`.
    """

    @property
    def version(self) -> int:
        """The number of its last change."""

    def find(self, identities: Iterable[bytes]) -> dict[bytes, Place]:
        """Return the place that counts of each identity that has one."""

    def earlier(self, identity: bytes) -> list[Place]:
        """Return the other places of an identity."""

    def merged(self) -> dict[bytes, Merged]:
        """Return the segments that it holds, by uuid."""

    def close(self) -> None:
        """Close."""


class Catalog:
    """Places and sums of all records of one store."""

    def __init__(self, files: ResultsFiles, index: Places) -> None:
        """Take what the index holds. Raises `UnusableIndexError`."""
        self.index = index
        self._files = files
        self._memory: dict[bytes, int] = {}
        """Of the tails, the place that counts, packed; it counts more than what the index has."""
        self._tails: dict[int, Tail] = {}
        self._lost: dict[int, Tally] = {}
        """Per tail, the sums of its records that don't count."""
        self._earlier: dict[bytes, list[Place]] = {}
        """The places of these records."""
        self._shadowed: dict[bytes, Tally] = {}
        """Of records that count in the index, and don't because of one in memory."""
        self._shadow = Tally()
        """The sum over `_shadowed`."""
        self.merged = index.merged()
        """The segments that the index holds, by uuid."""

    def find(self, asked: Iterable[bytes]) -> dict[bytes, Place]:
        """Return where the record of each identity is that has one. Raises `UnusableIndexError`."""
        memory = self._memory
        found: dict[bytes, Place] = {}
        missing: list[bytes] = []
        for identity in asked:
            packed = memory.get(identity)
            if packed is None:
                missing.append(identity)
            else:
                found[identity] = _unpack(packed)
        if missing:
            found |= self.index.find(missing)
        return found

    def history(self, identity: bytes) -> list[Place]:
        """Return where all records of an identity are, the one that counts last."""
        known = {*self.index.earlier(identity), *self._earlier.get(identity, ())}
        known |= {*self.index.find([identity]).values(), *self.find([identity]).values()}
        # Of equal ones the first counts.
        return sorted(known, key=lambda place: (place.rank, -place.sequence, -place.offset))

    def note(
        self, uuid: bytes, sequence: int, records: Sequence[Noted], existing: Mapping[bytes, Place]
    ) -> None:
        """Take in records that are durable in one segment.

        `existing` is what `find` said of their identities; each counts more than that.
        """
        tail = self._tails.get(sequence)
        if tail is None:
            tail = self._tails[sequence] = Tail(uuid, sequence)
        tail.extend(records)
        memory = self._memory
        for record, offset, rank in records:
            identity = record.identity
            packed = _pack(sequence, offset, rank)
            known = memory.setdefault(identity, packed)
            if known is not packed:
                self._weigh(identity, Place(sequence, offset, rank), _unpack(known))
            elif identity in existing:
                self._shadow_by(identity, existing[identity])

    def take_in(self, tail: Tail) -> None:
        """Take in the records of a segment that isn't in the index. Raises `UnusableIndexError`."""
        self._tails[tail.sequence] = tail
        rows = tail.rows()
        for start in range(0, len(rows), _BATCH):
            batch = list(places(rows[start : start + _BATCH]))
            found = self.find(identity for identity, _ in batch)
            for identity, place in batch:
                existing = found.get(identity)
                # It was merged since the reader began: then the index has it.
                if existing is not None and existing != place:
                    self._weigh(identity, place, existing)
                elif existing is None:
                    self._memory[identity] = _pack(*place)
                if existing is None or place.rank > existing.rank:
                    found[identity] = place

    def forget(self, table: Table) -> None:
        """Leave a tail to the index, which has just taken in its table."""
        sequence = table.sequence
        # What stands elsewhere in memory shadows what the index has of it now.
        elsewhere: list[bytes] = []
        memory = self._memory
        for identity in identities(table.part()):
            packed = memory.get(identity)
            if packed is None:
                continue
            if packed >> _OFFSET_BITS & _SEQUENCE_MASK == sequence:
                del memory[identity]
                self._unshadow(identity)
            else:
                elsewhere.append(identity)
        for identity, place in self.index.find(elsewhere).items():
            self._shadow_by(identity, place)
        kept = {
            identity: [place for place in known if place.sequence != sequence]
            for identity, known in self._earlier.items()
        }
        self._earlier = {identity: known for identity, known in kept.items() if known}
        self._tails.pop(sequence, None)
        self._lost.pop(sequence, None)
        self.merged = self.index.merged()

    def tail(self, sequence: int) -> Tail | None:
        """Return what is in memory of a segment."""
        return self._tails.get(sequence)

    def summary(self) -> Summary:
        """Return the sums over the records that count."""
        total = Tally()
        for merged in self.merged.values():
            total.add_all(merged.tally)
            total.supersede(merged.lost)
        for tail in self._tails.values():
            total.add_all(tail.tally)
        for lost in self._lost.values():
            total.supersede(lost)
        total.supersede(self._shadow)
        return total.summary()

    def _weigh(self, identity: bytes, place: Place, existing: Place) -> None:
        """Decide between a place in a tail and another one."""
        if place.rank > existing.rank:
            self._memory[identity] = _pack(*place)
            if existing.sequence in self._tails:
                self._lose(identity, existing)
            else:
                self._shadow_by(identity, existing)
        else:
            self._lose(identity, place)

    def _lose(self, identity: bytes, place: Place) -> None:
        self._lost.setdefault(place.sequence, Tally()).add_all(self._files.sum_of(identity, place))
        self._earlier.setdefault(identity, []).append(place)

    def _shadow_by(self, identity: bytes, place: Place) -> None:
        self._unshadow(identity)
        lost = self._shadowed[identity] = self._files.sum_of(identity, place)
        self._shadow.add_all(lost)

    def _unshadow(self, identity: bytes) -> None:
        lost = self._shadowed.pop(identity, None)
        if lost is not None:
            self._shadow.add_all(lost, -1)


_OFFSET_BITS = 36
_SEQUENCE_BITS = 34
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1


def _pack(sequence: int, offset: int, rank: int) -> int:
    """Return a place as one number: of an output a small one, since these are nearly all."""
    place = sequence << _OFFSET_BITS | offset >> 3
    return place if rank == OUTPUT_RANK else rank + 1 << _OFFSET_BITS + _SEQUENCE_BITS | place


def _unpack(packed: int) -> Place:
    code = packed >> _OFFSET_BITS + _SEQUENCE_BITS
    sequence = packed >> _OFFSET_BITS & _SEQUENCE_MASK
    return Place(sequence, (packed & (1 << _OFFSET_BITS) - 1) << 3, code - 1 if code else OUTPUT_RANK)
