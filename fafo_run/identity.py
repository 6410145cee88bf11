"""What names a unit of work for ever: content hashes, identities and seeds. Pure functions.

The canonical encoding is MessagePack with the keys of maps sorted, the shortest form of whole numbers and
64-bit floats, as `msgspec.msgpack` writes it; docs/format.md repeats it for other programs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from fafo_run.item import Value

_encode = msgspec.msgpack.Encoder(order="sorted").encode


def content_hash(fields: Mapping[str, Value]) -> bytes:
    """Return the 32-byte hash of a row's columns; the order of the columns doesn't matter.

    Raises `OverflowError` for a whole number that doesn't fit 64 bits.
    """
    return hashlib.sha256(_encode(dict(fields))).digest()


def identity(
    artifact: str,
    sampling_hash: str,
    model_fingerprint: str,
    source: str,
    key: str,
    row: bytes,
    sample: int,
) -> bytes:
    """Return the 16 bytes that name one unit of work (architecture.md section 4).

    `artifact`, `sampling_hash` and `model_fingerprint` are 64 hex digits each; `row` is the row's 32-byte
    content hash.
    """
    parts = (
        bytes.fromhex(artifact),
        bytes.fromhex(sampling_hash),
        bytes.fromhex(model_fingerprint),
        source,
        key,
        row,
        sample,
    )
    return hashlib.sha256(_encode(parts)).digest()[:16]


def seed(identity: bytes) -> int:
    """Return the sampling seed of an item: 31 bits, which every engine's seed can hold."""
    return int.from_bytes(identity[:4], "little") & 0x7FFF_FFFF
