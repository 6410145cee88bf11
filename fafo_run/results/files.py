"""Reads records out of results segments by place, and whole segments. Knows no index."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from fafo_run.item import Failure, FailureCode, Provenance, Record
from fafo_run.log.batch import Entry
from fafo_run.log.format import ALIGN, HEADER_SIZE, Header, Kind
from fafo_run.log.fs import Disk, File
from fafo_run.log.listing import segment_name, segments
from fafo_run.log.payload import Undecodable
from fafo_run.log.provenance import ProvenanceTable
from fafo_run.log.reader import read_entry, read_header, walk
from fafo_run.results.payload import read_record
from fafo_run.results.place import Place
from fafo_run.results.summary import Group, Tally

_OPEN = 64
"""Files kept open at once."""
_END = 256 << 10
"""Bytes before the end of a segment in which the copies of its provenance stand."""
RECORDS = frozenset({int(Kind.OUTPUT), int(Kind.FAILURE)})


@frozen
class ResultsSegment:
    """An open segment and the provenance of its records."""

    sequence: int
    file: File
    header: Header
    provenance: ProvenanceTable

    def record(self, entry: Entry) -> Record:
        """Return the record of an OUTPUT or FAILURE entry. Raises `Undecodable`."""
        return read_record(entry, self._said, self.header.lane)

    def _said(self, number: int) -> Provenance:
        return self.provenance.find(number, self.file, self.header)

    def entries(self) -> Iterator[Entry]:
        """Yield the OUTPUT and FAILURE entries, in order; provenance is remembered on the way."""
        for found in walk(self.file, self.header):
            if isinstance(found, Entry):
                if found.kind == Kind.PROVENANCE:
                    self.provenance.add(found)
                elif found.kind in RECORDS:
                    yield found

    def provenances(self) -> Iterator[Provenance]:
        """Yield what its records share, by the copies before the seal: not all while the segment grows."""
        table = ProvenanceTable()
        start = (self.file.size() - _END) // ALIGN * ALIGN
        for found in walk(self.file, self.header, max(HEADER_SIZE, start)):
            if isinstance(found, Entry) and found.kind == Kind.PROVENANCE:
                table.add(found)
        yield from table


class ResultsFiles:
    """The segments of one folder, opened as they are needed. Not thread-safe."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._open: OrderedDict[int, ResultsSegment] = OrderedDict()
        self._sums: dict[tuple[Group, FailureCode], Tally] = {}
        """Of one failure each."""

    def list(self) -> list[int]:
        """Return the sequences of the segments that are there, oldest first."""
        return [segment.sequence for segment in segments(self._disk, self._folder)]

    def get(self, sequence: int) -> ResultsSegment | None:
        """Return a segment, None when it isn't there or has no readable header."""
        known = self._open.get(sequence)
        if known is not None:
            self._open.move_to_end(sequence)
            return known
        segment = self.fresh(sequence)
        if segment is None:
            return None
        self._open[sequence] = segment
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)[1].file.close()
        return segment

    def fresh(self, sequence: int) -> ResultsSegment | None:
        """Return a segment that the caller closes; for long reads beside others."""
        try:
            file = File(self._disk, self._folder / segment_name(sequence))
        except FileNotFoundError:
            return None
        header, _ = read_header(file)
        if header is None:
            file.close()
            return None
        return ResultsSegment(sequence, file, header, ProvenanceTable())

    def read(self, identity: bytes, place: Place) -> Record | None:
        """Return the record of `identity` at a place, None when what stands there isn't that record."""
        segment = self.get(place.sequence)
        entry = read_entry(segment.file, segment.header, place.offset) if segment is not None else None
        if segment is None or entry is None or entry.identity != identity or entry.kind not in RECORDS:
            return None
        try:
            return segment.record(entry)
        except Undecodable:
            return None

    def sum_of(self, identity: bytes, place: Place) -> Tally:
        """Return the sums of the one record at a place, none when it can't be read. Not to be changed."""
        record = self.read(identity, place)
        if record is None:
            return Tally()
        tally = Tally.of(record)
        if not isinstance(record.outcome, Failure):
            return tally
        # Some keep the sums of many records, and nearly all of these fail alike.
        ((group, _),) = tally.groups.items()
        return self._sums.setdefault((group, record.outcome.code), tally)

    def headers(self) -> dict[int, tuple[bytes, int]]:
        """Return uuid and size in bytes of each segment that has a readable header, by sequence."""
        found: dict[int, tuple[bytes, int]] = {}
        for sequence in self.list():
            segment = self.fresh(sequence)
            if segment is not None:
                found[sequence] = (segment.header.uuid, segment.file.size())
                segment.file.close()
        return found

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].file.close()
