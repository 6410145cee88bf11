"""The payload of a queue entry: a `QueuedItem` without what its segment's header and provenance say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fafo_run.item import Failure, FailureCode, Provenance, QueuedItem, Stage
from fafo_run.log.appender import Draft
from fafo_run.log.batch import Array, Entry, Run
from fafo_run.log.format import WIDE, Kind
from fafo_run.log.payload import (
    FIELDS,
    ProvenanceCache,
    Undecodable,
    encode,
    ids_of,
    pack_bounds,
    unpack,
    unpack_bounds,
)

_ARRAY = 0x90 + len(FIELDS[Kind.ITEM])
"""The first byte of each payload."""
_LAST_FIXINT = 0x7F
"""A number up to this one is its own byte."""
_FRESH = b"\0\0\xc0"
"""The end of a payload with no attempts, no retry and no failure; no text ends in that byte."""


def draft(item: QueuedItem, cache: ProvenanceCache) -> Draft:
    """Return an item as the appender takes it. Raises `ValueError` for a hash that isn't 64 hex digits."""
    kind = Kind.ITEM | WIDE if item.suffix.wide else int(Kind.ITEM)
    fields = (
        0, item.key, item.sample, item.seed, item.content_hash, item.suffix.data, pack_bounds(item.bounds),
        item.prompt_tokens, item.attempts, item.retry, _packed(item.failure),
    )  # fmt: skip
    route, packed = cache.pack(item.provenance, item.lane)
    return Draft(route, packed, kind, item.identity, encode(fields))


def read_item(entry: Entry, find: Callable[[int], Provenance], lane: int) -> QueuedItem:
    """Return the item of an ITEM entry; `find` knows provenance by number. Raises `Undecodable`."""
    fields = unpack(entry.payload, Kind.ITEM)
    number, key, sample, seed, content, suffix, bounds, prompt_tokens, attempts, retry, failure = fields
    try:
        return QueuedItem(
            identity=entry.identity,
            provenance=find(number),
            key=key,
            sample=sample,
            seed=seed,
            content_hash=content,
            suffix=ids_of(entry.word, suffix),
            bounds=unpack_bounds(bounds),
            prompt_tokens=prompt_tokens,
            lane=lane,
            attempts=attempts,
            retry=retry,
            failure=None if failure is None else _failure(*failure),
        )
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error


def provenance_numbers(run: Run, which: Array) -> Array:
    """Return the number of the provenance of each ITEM entry where `which` is true. Raises `Undecodable`."""
    bodies = run.bodies[which]
    if not len(bodies):
        return bodies
    data = np.frombuffer(run.data, np.uint8)
    numbers: Array = data[bodies + 1].astype(np.int64)
    if (data[bodies] == _ARRAY).all() and (numbers <= _LAST_FIXINT).all():
        return numbers
    return np.array([unpack(entry.payload, Kind.ITEM)[0] for entry in run.entries(which)], np.int64)


def counts(run: Run, which: Array) -> list[tuple[int, int]]:
    """Return `retry` and `attempts` of each ITEM entry where `which` is true. Raises `Undecodable`."""
    data = np.frombuffer(run.data, np.uint8)
    stops = (run.bodies + run.lengths)[which]
    tails = [data[stops - back] == byte for back, byte in enumerate(reversed(_FRESH), 1)]
    worn = np.flatnonzero(~np.logical_and.reduce(tails))
    found = [(0, 0)] * len(stops)
    chosen = np.zeros(len(run), bool)
    chosen[np.flatnonzero(which)[worn]] = True
    for at, entry in zip(worn.tolist(), run.entries(chosen), strict=True):
        attempts, retry, _ = unpack(entry.payload, Kind.ITEM)[8:]
        found[at] = retry, attempts
    return found


def _packed(failure: Failure | None) -> tuple[str, str, str] | None:
    return None if failure is None else (failure.code.value, failure.stage.value, failure.message)


def _failure(code: str, stage: str, message: str) -> Failure:
    return Failure(FailureCode(code), Stage(stage), message)
