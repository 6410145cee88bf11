"""The payload of a queue entry: a `QueuedItem` without what its segment's header and provenance say."""

from __future__ import annotations

from collections.abc import Callable

from fafo_run.item import Provenance, QueuedItem
from fafo_run.log.appender import Draft, route_of
from fafo_run.log.format import Kind
from fafo_run.log.payload import (
    ProvenanceCache,
    Undecodable,
    encode,
    pack_bounds,
    pack_ids,
    unpack,
    unpack_bounds,
    unpack_ids,
)
from fafo_run.log.reader import Entry


def draft(item: QueuedItem, cache: ProvenanceCache) -> Draft:
    """Return an item as the appender takes it. Raises `ValueError` for a hash that isn't 64 hex digits."""
    said = item.provenance
    route = route_of(said.model_fingerprint, said.artifact, item.lane)

    def pack(number: int) -> tuple[int, bytes]:
        wide, (suffix,) = pack_ids(item.suffix)
        fields = (
            number, item.key, item.sample, item.seed, item.content_hash, suffix,
            pack_bounds(item.bounds), item.prompt_tokens,
        )  # fmt: skip
        return Kind.ITEM | wide, encode(fields)

    return Draft(route, cache.pack(said), item.identity, pack)


def read_item(entry: Entry, find: Callable[[int], Provenance], lane: int) -> QueuedItem:
    """Return the item of an ITEM entry; `find` knows provenance by number. Raises `Undecodable`."""
    number, key, sample, seed, content, suffix, bounds, prompt_tokens = unpack(entry.payload, Kind.ITEM)
    try:
        return QueuedItem(
            identity=entry.identity,
            provenance=find(number),
            key=key,
            sample=sample,
            seed=seed,
            content_hash=content,
            suffix=unpack_ids(entry.word, suffix),
            bounds=unpack_bounds(bounds),
            prompt_tokens=prompt_tokens,
            lane=lane,
        )
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error
