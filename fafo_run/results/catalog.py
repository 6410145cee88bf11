"""Decides which record of an identity counts: an output before a failure, else the first.

Sealed segments are in the index, the others in memory. It writes nothing but the index. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from attrs import Factory, define

from fafo_run.item import Record
from fafo_run.log.payload import Undecodable
from fafo_run.log.reader import seal_of
from fafo_run.results.files import ResultsFiles, ResultsSegment
from fafo_run.results.index import Index, Merged, Place, UnusableIndexError
from fafo_run.results.summary import Summary, Tally

_BATCH = 1000


@define
class _Tail:
    """What is known of a segment that the index doesn't hold."""

    uuid: bytes
    tally: Tally = Factory(Tally)
    identities: list[bytes] = Factory(list)


class Catalog:
    """Places and sums of all records of one store."""

    def __init__(self, files: ResultsFiles, index: Index | None) -> None:
        """Take what the index holds. Raises `UnusableIndexError`."""
        self.index = index
        self._files = files
        self._memory: dict[bytes, Place] = {}
        self._tails: dict[int, _Tail] = {}
        # In this order: a segment merged in between is then scanned, and scanning twice changes nothing.
        self.merged = index.merged() if index is not None else {}
        """The segments that the index holds, by uuid."""
        self._superseded = index.superseded() if index is not None else {}
        self._fresh: dict[bytes, Tally] = {}

    def load(self, growing: Collection[int] = (), *, merge: bool) -> None:
        """Read every segment that the index doesn't hold; `merge` those that don't grow into it.

        Raises `UnusableIndexError` when the index holds segments that aren't there as they were merged.
        """
        missing: list[int] = []
        present: set[bytes] = set()
        for sequence in self._files.list():
            segment = self._files.get(sequence)
            if segment is None:
                continue
            present.add(segment.header.uuid)
            merged = self.merged.get(segment.header.uuid)
            if merged is None:
                missing.append(sequence)
            elif (merged.sequence, merged.size) != (sequence, segment.file.size()):
                raise UnusableIndexError("a segment has changed since it was indexed")
        if not present.issuperset(self.merged):
            raise UnusableIndexError("the index holds segments that aren't there")
        for sequence in missing:
            segment = self._files.get(sequence)
            if segment is None or segment.header.uuid in self.merged:
                continue
            self._scan(segment)
            if merge and sequence not in growing:
                self.merge(sequence)

    def find(self, identities: Iterable[bytes]) -> dict[bytes, Place]:
        """Return where the record of each identity is that has one. Raises `UnusableIndexError`."""
        asked = list(identities)
        found = {identity: self._memory[identity] for identity in asked if identity in self._memory}
        if self.index is not None and len(found) < len(asked):
            found |= self.index.find(identity for identity in asked if identity not in found)
        return found

    def note(self, uuid: bytes, record: Record, place: Place, existing: Place | None) -> None:
        """Take in a record that is durable at `place`, where `existing` is what `find` says."""
        if existing == place:
            existing = None
        tail = self._tails.setdefault(place.sequence, _Tail(uuid))
        tail.tally.add(record)
        if existing is None or (place.output and not existing.output):
            self._memory[record.identity] = place
            tail.identities.append(record.identity)
            loser = self._files.read(record.identity, existing) if existing is not None else None
            if existing is not None and loser is not None:
                self._supersede(existing, loser)
        else:
            self._supersede(place, record)

    def merge(self, sequence: int) -> None:
        """Move a segment into the index, unless it isn't sealed: then it may change. Raises `StoreError`."""
        segment = self._files.get(sequence)
        if self.index is None or segment is None or seal_of(segment.file, segment.header) is None:
            return
        tail = self._tails.get(sequence, _Tail(segment.header.uuid))
        places = {
            identity: place
            for identity in tail.identities
            if (place := self._memory[identity]).sequence == sequence
        }
        merged = Merged(sequence, segment.file.size(), tail.tally)
        self.index.merge(tail.uuid, merged, places, self._fresh)
        self.merged[tail.uuid] = merged
        self._superseded |= self._fresh
        self._fresh = {}
        self._tails.pop(sequence, None)
        for identity in places:
            del self._memory[identity]

    def summary(self) -> Summary:
        """Return the sums over the records that count."""
        total = Tally()
        for merged in self.merged.values():
            total.merge(merged.tally)
        for tail in self._tails.values():
            total.merge(tail.tally)
        for loser in (self._superseded | self._fresh).values():
            total.supersede(loser)
        return total.summary()

    def _supersede(self, place: Place, record: Record) -> None:
        self._fresh[place.key] = Tally.of(record)

    def _scan(self, segment: ResultsSegment) -> None:
        uuid = segment.header.uuid
        self._tails[segment.sequence] = _Tail(uuid)
        for batch in _batches(segment):
            found = self.find(record.identity for record, _ in batch if record is not None)
            for record, place in batch:
                if record is None:
                    self._tails[segment.sequence].tally.undecodable += 1
                    continue
                # An earlier record of this batch may have taken the place of what was found.
                self.note(uuid, record, place, self._memory.get(record.identity, found.get(record.identity)))


def _batches(segment: ResultsSegment) -> Iterable[list[tuple[Record | None, Place]]]:
    """Yield a segment's records with their places; None for one that can't be decoded."""
    batch: list[tuple[Record | None, Place]] = []
    for entry in segment.entries():
        try:
            batch.append((segment.record(entry), segment.place(entry)))
        except Undecodable:
            batch.append((None, segment.place(entry)))
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch
