"""What the payloads of both logs share: token ids as raw arrays, and provenance. No files.

A payload is one MessagePack array; docs/format.md describes each, field by field.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from fafo_run.item import Ids, Provenance
from fafo_run.log.format import WIDE, Kind

FIELDS: dict[int, tuple[str, ...]] = {
    Kind.ITEM: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
    ),
    Kind.OUTPUT: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
        "attempt", "server", "started", "seconds",
        "ids", "finish_type", "finish_matched", "cached_tokens", "expected_cached_tokens",
    ),
    Kind.FAILURE: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
        "attempt", "server", "started", "seconds",
        "code", "stage", "message",
    ),
    Kind.PROVENANCE: (
        "number", "class", "source", "artifact", "model", "model_fingerprint", "sampling",
        "sampling_hash", "engine", "engine_version", "engine_settings", "fafo_version",
    ),
}  # fmt: skip
"""The names of a payload's fields, in order."""

encode = msgspec.msgpack.Encoder(order="sorted").encode
decode = msgspec.msgpack.Decoder().decode


class Undecodable(Exception):
    """An entry whose checksum holds and whose payload isn't what its kind says."""


def pack_ids(*parts: Ids) -> tuple[int, list[bytes]]:
    """Return the flag for the kind word and each part as raw ids: u16 when every id fits, else u32.

    Raises `OverflowError` for an id that doesn't fit u32.
    """
    try:
        return 0, [_raw(array("H", part)) for part in parts]
    except OverflowError:
        return WIDE, [_raw(array("I", part)) for part in parts]


def unpack_ids(word: int, data: bytes) -> Ids:
    """Return ids from their raw form; `word` is the entry's kind word. Raises `Undecodable`."""
    ids = array("I" if word & WIDE else "H")
    if len(data) % ids.itemsize:
        raise Undecodable(f"{len(data)} bytes of token ids of {ids.itemsize} bytes each")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def _raw(ids: array[int]) -> bytes:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def pack_bounds(bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Return pairs as one flat list."""
    return [end for pair in bounds for end in pair]


def unpack_bounds(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of a flat list. Raises `ValueError` for an odd number."""
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def unpack(payload: bytes, kind: int) -> list[Any]:
    """Return the fields of a payload as they stand, in the order of `FIELDS`. Raises `Undecodable`."""
    try:
        fields = decode(payload)
    except msgspec.DecodeError as error:
        raise Undecodable(str(error)) from error
    if not isinstance(fields, list) or len(fields) != len(FIELDS.get(kind, ())):
        raise Undecodable(f"not the fields of an entry of kind {kind}")
    return fields


def pack_provenance(provenance: Provenance) -> bytes:
    """Return provenance without its number: equal provenance gives equal bytes."""
    return encode(
        (
            provenance.class_name,
            provenance.source,
            provenance.artifact,
            provenance.model,
            provenance.model_fingerprint,
            dict(provenance.sampling),
            provenance.sampling_hash,
            provenance.engine,
            provenance.engine_version,
            dict(provenance.engine_settings),
            provenance.fafo_version,
        )
    )


def number_provenance(number: int, packed: bytes) -> bytes:
    """Return the payload of a PROVENANCE entry, from what `pack_provenance` returned."""
    return encode((number, *(msgspec.Raw(part) for part in msgspec.msgpack.decode(packed, type=_RAWS))))


_RAWS = list[msgspec.Raw]


def unpack_provenance(payload: bytes) -> tuple[int, Provenance]:
    """Return a PROVENANCE entry's number and provenance. Raises `Undecodable`."""
    number, *fields = unpack(payload, Kind.PROVENANCE)
    return number, Provenance(*fields)


class ProvenanceCache:
    """Packed provenance by object, so that a batch of items that share one packs it once."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._packed: dict[int, tuple[Provenance, bytes]] = {}

    def pack(self, provenance: Provenance) -> bytes:
        """Return what `pack_provenance` returns."""
        # The object is kept beside its bytes: its id can't pass to another object meanwhile.
        known = self._packed.get(id(provenance))
        if known is None:
            if len(self._packed) >= self._limit:
                self._packed.clear()
            known = self._packed[id(provenance)] = (provenance, pack_provenance(provenance))
        return known[1]
