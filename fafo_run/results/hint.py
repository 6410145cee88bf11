"""The bytes of a hint: the table of a sealed segment, in a file beside it. Derived, and may be deleted.

hint      = header row* sums checksum            little-endian, but for the identities

header    =    0   8 B  magic "FAFOHINT"          64 bytes
               8   u32  version
              12   u32  zero
              16  16 B  uuid of the segment
              32   u64  size of the segment's file
              40   u64  digest in the segment's seal
              48   u64  number of rows
              56   u64  length of the sums

row       =    0  16 B  identity                  28 bytes; sorted by identity, of one identity the record
              16   u64  offset of the entry       that counts first
              24   u32  rank                      of an output 2^32 - 1, of a failure its retry

sums      = MessagePack, see `Tally.pack`
checksum  = u64  xxh3_64 of all before it
"""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from fafo_run.log.format import Seal
from fafo_run.log.fs import Disk, File, read_file, replace_file
from fafo_run.results.files import ResultsSegment
from fafo_run.results.place import ROW, Rows
from fafo_run.results.summary import Tally
from fafo_run.results.table import Table, fan_of

MAGIC = b"FAFOHINT"
VERSION = 1
SUFFIX = ".hint"
_HEADER = struct.Struct("<8sII16sQQQQ")
_CHECKSUM = struct.Struct("<Q")
_ROW = np.dtype([("high", ">u8"), ("low", ">u8"), ("offset", "<u8"), ("rank", "<u4")])


def write_hint(disk: Disk, segment: ResultsSegment, seal: Seal, table: Table) -> None:
    """Write a segment's hint, so that a crash leaves the old file or the new one. Raises `StoreError`."""
    sums = table.tally.pack()
    header = _HEADER.pack(MAGIC, VERSION, 0, table.uuid, table.size, seal.digest, table.count, len(sums))
    rows = table.part()
    packed = np.empty(len(rows), _ROW)
    for name in packed.dtype.names or ():
        packed[name] = rows[name]
    body = b"".join((header, packed.tobytes(), sums))
    checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))
    replace_file(disk, segment.file.path.with_suffix(SUFFIX), body + checksum)


def read_hint(disk: Disk, segment: ResultsSegment, seal: Seal, *, keep: bool) -> Table | None:
    """Return the table in a segment's hint, None when there is none that is whole and of just this segment.

    `keep` holds its rows in memory. Else they are read when they are asked for: that is for the store's
    owner, since nobody else writes hints.
    """
    path = segment.file.path.with_suffix(SUFFIX)
    data = read_file(disk, path)
    if data is None or len(data) < _HEADER.size + _CHECKSUM.size:
        return None
    magic, version, _, uuid, size, digest, count, length = _HEADER.unpack_from(data)
    at = _HEADER.size + count * _ROW.itemsize
    if (magic, version) != (MAGIC, VERSION) or len(data) != at + length + _CHECKSUM.size:
        return None
    if (uuid, size, digest) != (segment.header.uuid, segment.file.size(), seal.digest):
        return None
    body = memoryview(data)[: -_CHECKSUM.size]
    if xxhash.xxh3_64_intdigest(body) != _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]:
        return None
    try:
        tally = Tally.unpack(bytes(body[at:]))
    except (TypeError, ValueError):
        return None
    sequence = segment.sequence
    rows = _rows(body[_HEADER.size : at], sequence)
    if keep:
        return Table.of(uuid, sequence, size, tally, rows)

    def read(first: int, last: int) -> Rows:
        file = File(disk, path)
        try:
            length = (last - first) * _ROW.itemsize
            return _rows(file.read_at(_HEADER.size + first * _ROW.itemsize, length), sequence)
        finally:
            file.close()

    return Table(uuid, sequence, size, tally, fan_of(rows), read)


def _rows(data: bytes | memoryview, sequence: int) -> Rows:
    packed = np.frombuffer(data, _ROW)
    rows = np.empty(len(packed), ROW)
    for name in packed.dtype.names or ():
        rows[name] = packed[name]
    rows["sequence"] = sequence
    return rows
