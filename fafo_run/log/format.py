"""The bytes of a segment: constants, pack, unpack. It knows no files, no payloads and no meaning of a marker.

segment   = header entry* [seal]                  little-endian, everything 8-byte aligned

header    = copy copy                             4,096 bytes, written once; the copies are equal
copy      =    0   8 B  magic "FAFOSEG\\n"         2,048 bytes each
               8   u32  format version
              12   u32  kind of segment           1 queue, 2 results
              16   u64  sequence                  the number in the file's name
              24  16 B  uuid
              40  32 B  model fingerprint
              72  32 B  artifact hash
             104   u32  lane                      in tokens
             108   u32  zero
             112   i64  created                   nanoseconds since the epoch
             120        zeros
            2040   u64  xxh3_64 of bytes 0 to 2039

entry     =    0   u32  magic "\\xfa\\xf0EN"
               4   u32  marker                    LIVE 0x4C495645 | RETIRED 0xB3B6A9BA
               8   u32  length                    of the payload, at most 64 MiB
              12   u32  kind, flags               bits 0-15 the kind, bit 31 WIDE
              16  16 B  identity                  zeros in PROVENANCE, SEAL, COMMIT
              32   u64  xxh3_64 over uuid, offset as u64, bytes 0-3, bytes 8-31, payload
              40        payload, then zeros up to a multiple of 8

seal      = the last entry, of kind SEAL; its payload is
               0   u64  count                     entries before the seal, of all kinds
               8   u64  end                       where the content ends: the seal's own offset
              16   u64  xxh3_64 of the entries from 4,096 to end, with every marker read as LIVE

commit    = an entry of kind COMMIT, for whoever reads a segment that isn't sealed; its payload is
               0   u64  xxh3_64 as in a seal, of the entries from 4,096 to the COMMIT's own offset
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import xxhash
from attrs import frozen

from fafo_run.log.route import Route

VERSION = 2
HEADER_MAGIC = b"FAFOSEG\n"
HEADER_SIZE = 4096
COPY_SIZE = 2048
ENTRY_MAGIC = b"\xfa\xf0EN"
ENTRY_SIZE = 40
"""Of an entry's fields before its payload, in bytes."""
ALIGN = 8
MAX_PAYLOAD = 64 << 20

LIVE = 0x4C495645
RETIRED = 0xB3B6A9BA
MARKER_AT = 4
"""Where an entry's marker is, in bytes from the entry's offset."""

WIDE = 1 << 31
"""Flag: token ids in the payload are u32; without it they are u16."""
KIND_MASK = 0xFFFF

NO_IDENTITY = bytes(16)

_COPY = struct.Struct("<8sIIQ16s32s32sIIq")
_ENTRY = struct.Struct("<4sIII16sQ")
_COVERED = struct.Struct("<16sQ4sII16s")
_MARKER = struct.Struct("<I")
_SEAL = struct.Struct("<QQQ")
_CHECKSUM = struct.Struct("<Q")
RETIRED_BYTES = _MARKER.pack(RETIRED)
SEAL_PAYLOAD = _SEAL.size


class SegmentKind(IntEnum):
    """Which log a segment belongs to."""

    QUEUE = 1
    RESULTS = 2


class Kind(IntEnum):
    """What an entry holds."""

    ITEM = 1
    OUTPUT = 2
    FAILURE = 3
    PROVENANCE = 4
    SEAL = 5
    COMMIT = 6


@frozen
class Header:
    """What a segment says of itself; never changed after it was written."""

    kind: SegmentKind
    sequence: int
    uuid: bytes
    """16 bytes."""
    model_fingerprint: bytes
    """32 bytes."""
    artifact: bytes
    """32 bytes."""
    lane: int
    """Upper bound of the length bucket, in tokens."""
    created: int
    """Nanoseconds since the epoch."""

    @property
    def route(self) -> Route:
        """What all entries of the segment share."""
        return Route(self.model_fingerprint, self.artifact, self.lane)


class Fields(NamedTuple):
    """An entry's fields before its payload, as they stand; a tuple because millions are read."""

    magic: bytes
    marker: int
    length: int
    word: int
    identity: bytes
    checksum: int


@frozen
class Seal:
    """The footer of a finished segment."""

    count: int
    """Entries before the seal, of all kinds."""
    end: int
    """Where the content ends, in bytes from the start of the file; the seal's own offset."""
    digest: int
    """xxh3_64 of the content with every marker read as LIVE."""


class Unversioned(Exception):
    """A header that is whole, and of a format version that this program doesn't know."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"format version {version}")


def pack_header(header: Header) -> bytes:
    """Return the 4,096 bytes of a header. Raises `ValueError` when a hash or uuid has the wrong size."""
    if (len(header.uuid), len(header.model_fingerprint), len(header.artifact)) != (16, 32, 32):
        raise ValueError("a header takes a uuid of 16 bytes, a fingerprint and an artifact hash of 32")
    fields = _COPY.pack(
        HEADER_MAGIC,
        VERSION,
        header.kind,
        header.sequence,
        header.uuid,
        header.model_fingerprint,
        header.artifact,
        header.lane,
        0,
        header.created,
    )
    body = fields.ljust(COPY_SIZE - _CHECKSUM.size, b"\0")
    return (body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))) * 2


def unpack_header(data: bytes) -> tuple[Header | None, bool]:
    """Return the header in the first 4,096 bytes of a file, and whether both of its copies are whole.

    The first whole copy counts; None when there is none. Raises `Unversioned`.
    """
    copies = [_unpack_copy(data[at : at + COPY_SIZE]) for at in (0, COPY_SIZE)]
    whole = [copy for copy in copies if copy is not None]
    return (whole[0] if whole else None), len(whole) == len(copies)


def _unpack_copy(data: bytes) -> Header | None:
    if len(data) != COPY_SIZE or not data.startswith(HEADER_MAGIC):
        return None
    body, checksum = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]
    if xxhash.xxh3_64_intdigest(body) != checksum:
        return None
    _, version, kind, sequence, uuid, fingerprint, artifact, lane, _, created = _COPY.unpack_from(data)
    if version != VERSION or kind not in SegmentKind.__members__.values():
        raise Unversioned(version)
    return Header(SegmentKind(kind), sequence, uuid, fingerprint, artifact, lane, created)


def checksum(uuid: bytes, offset: int, length: int, word: int, identity: bytes, payload: bytes) -> int:
    """Return the checksum of an entry at `offset` of the segment `uuid`."""
    covered = _COVERED.pack(uuid, offset, ENTRY_MAGIC, length, word, identity)
    return xxhash.xxh3_64_intdigest(covered + payload)


def padded(length: int) -> int:
    """Return the size of an entry with a payload of `length` bytes, padding included."""
    return (ENTRY_SIZE + length + ALIGN - 1) & -ALIGN


def pack_entry(uuid: bytes, offset: int, word: int, identity: bytes, payload: bytes) -> bytes:
    """Return a LIVE entry for exactly this place. Raises `ValueError` when the payload is too large."""
    length = len(payload)
    if length > MAX_PAYLOAD:
        raise ValueError(f"a payload of {length} bytes; at most {MAX_PAYLOAD} fit an entry")
    total = checksum(uuid, offset, length, word, identity, payload)
    fields = _ENTRY.pack(ENTRY_MAGIC, LIVE, length, word, identity, total)
    return b"".join((fields, payload, bytes(padded(length) - ENTRY_SIZE - length)))


def unpack_fields(data: bytes, at: int = 0) -> Fields:
    """Return the fields that stand at `at`; 40 bytes must be there. Nothing is checked."""
    return Fields._make(_ENTRY.unpack_from(data, at))


def pack_seal(seal: Seal) -> bytes:
    """Return the payload of a SEAL entry."""
    return _SEAL.pack(seal.count, seal.end, seal.digest)


def unpack_seal(payload: bytes) -> Seal | None:
    """Return what a SEAL entry says; None when its payload has the wrong size."""
    return Seal(*_SEAL.unpack(payload)) if len(payload) == SEAL_PAYLOAD else None


def pack_commit(digest: int) -> bytes:
    """Return the payload of a COMMIT entry; `digest` is what a seal in its place would say."""
    return _CHECKSUM.pack(digest)


def unpack_commit(payload: bytes) -> int | None:
    """Return the digest in a COMMIT entry; None when its payload has the wrong size."""
    digest: int | None = _CHECKSUM.unpack(payload)[0] if len(payload) == _CHECKSUM.size else None
    return digest
