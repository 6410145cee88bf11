"""What the payloads of both logs share: token ids as raw arrays, and provenance. No files.

A payload is one MessagePack array; docs/format.md describes each, field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from fafo_run.item import PackedIds, Provenance
from fafo_run.log.format import WIDE, Kind
from fafo_run.log.route import Route, route_of

FIELDS: dict[int, tuple[str, ...]] = {
    Kind.ITEM: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
        "attempts", "retry", "failure",
    ),
    Kind.OUTPUT: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
        "attempt", "server", "started", "seconds", "retry",
        "ids", "finish_type", "finish_matched", "cached_tokens", "expected_cached_tokens",
    ),
    Kind.FAILURE: (
        "provenance", "key", "sample", "seed", "content_hash", "suffix", "bounds", "prompt_tokens",
        "attempt", "server", "started", "seconds", "retry",
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


def ids_of(word: int, data: bytes) -> PackedIds:
    """Return ids from their bytes; `word` is the entry's kind word. Raises `Undecodable`."""
    try:
        return PackedIds(data, wide=bool(word & WIDE))
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error


def pack_bounds(bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Return pairs as one flat list."""
    return list(chain.from_iterable(bounds))


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


def numbered(payload: bytes, number: int) -> bytes:
    """Return a payload, whose first field is 0, with this number of its provenance instead."""
    # Up to 15 fields an array begins with one byte, else with three; 0 is a byte of its own.
    at = 1 if payload[0] & 0xF0 == 0x90 else 3
    return b"".join((payload[:at], encode(number), payload[at + 1 :])) if number else payload


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
    """Packed provenance and routes by object, so that a batch of items that share one packs it once."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._packed: dict[tuple[int, int], tuple[Provenance, Route, bytes]] = {}

    def pack(self, provenance: Provenance, lane: int) -> tuple[Route, bytes]:
        """Return the route of entries in this lane, and what `pack_provenance` returns.

        Raises `ValueError` for a hash that isn't 64 hex digits.
        """
        # The object is kept beside its bytes: its id can't pass to another object meanwhile.
        known = self._packed.get((id(provenance), lane))
        if known is None:
            if len(self._packed) >= self._limit:
                self._packed.clear()
            route = route_of(provenance.model_fingerprint, provenance.artifact, lane)
            known = (provenance, route, pack_provenance(provenance))
            self._packed[id(provenance), lane] = known
        return known[1:]
