"""Finds the provenance that an entry of a segment refers to by number."""

from __future__ import annotations

from collections.abc import Iterator

from fafo_run.item import Provenance
from fafo_run.log.batch import Entry
from fafo_run.log.format import Header, Kind
from fafo_run.log.fs import File
from fafo_run.log.payload import Undecodable, unpack_provenance
from fafo_run.log.reader import walk


class ProvenanceTable:
    """The provenance of one segment, filled as it is met and searched for when it isn't known yet."""

    def __init__(self) -> None:
        self._known: dict[int, Provenance] = {}
        self._absent: set[int] = set()

    def add(self, entry: Entry) -> None:
        """Take a PROVENANCE entry; one that can't be read is passed over, since it stands twice."""
        try:
            number, provenance = unpack_provenance(entry.payload)
        except Undecodable:
            return
        self._known.setdefault(number, provenance)

    def __iter__(self) -> Iterator[Provenance]:
        """Yield what is known."""
        return iter(self._known.values())

    def find(self, number: int, file: File, header: Header) -> Provenance:
        """Return provenance by number. Raises `Undecodable` when the segment has no readable entry of it.

        It stands before the first entry that refers to it, and again before the seal.
        """
        known = self._known.get(number)
        if known is not None:
            return known
        if number not in self._absent:
            for found in walk(file, header):
                if isinstance(found, Entry) and found.kind == Kind.PROVENANCE:
                    self.add(found)
                    if number in self._known:
                        break
            else:
                # Searched once: a segment that lost its provenance would be walked for every entry.
                self._absent.add(number)
        try:
            return self._known[number]
        except KeyError:
            raise Undecodable(f"the segment has no readable provenance of number {number}") from None
