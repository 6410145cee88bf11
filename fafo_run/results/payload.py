"""The payload of a results entry: a `Record` without what its segment's header and provenance say."""

from __future__ import annotations

from collections.abc import Callable

from fafo_run.item import Failure, FailureCode, FinishReason, Output, Provenance, Record, Stage
from fafo_run.log.appender import Draft
from fafo_run.log.batch import Entry
from fafo_run.log.format import WIDE, Kind
from fafo_run.log.payload import (
    ProvenanceCache,
    Undecodable,
    encode,
    ids_of,
    pack_bounds,
    unpack,
    unpack_bounds,
)

_OUTPUT, _FAILURE = int(Kind.OUTPUT), int(Kind.FAILURE)


def draft(record: Record, cache: ProvenanceCache) -> Draft:
    """Return a record as the appender takes it. Raises `ValueError` for a hash that isn't 64 hex digits."""
    suffix, outcome = record.suffix, record.outcome
    last: tuple[bytes | str | int | None, ...]
    if isinstance(outcome, Output):
        ids, reason, kind = outcome.ids, outcome.finish_reason, _OUTPUT
        if suffix.wide or ids.wide:
            suffix, ids, kind = suffix.widened(), ids.widened(), _OUTPUT | WIDE
        cached = (outcome.cached_tokens, outcome.expected_cached_tokens)
        last = (ids.data, reason.type, reason.matched, *cached)
    else:
        kind = _FAILURE | WIDE if suffix.wide else _FAILURE
        last = (outcome.code.value, outcome.stage.value, outcome.message)
    fields = (
        0, record.key, record.sample, record.seed, record.content_hash, suffix.data,
        pack_bounds(record.bounds), record.prompt_tokens, record.attempt, record.server,
        record.started, record.seconds, record.retry, *last,
    )  # fmt: skip
    route, packed = cache.pack(record.provenance, record.lane)
    return Draft(route, packed, kind, record.identity, encode(fields))


def read_record(entry: Entry, find: Callable[[int], Provenance], lane: int) -> Record:
    """Return the record of an OUTPUT or FAILURE entry; `find` knows provenance by number.

    Raises `Undecodable`.
    """
    fields = unpack(entry.payload, entry.kind)
    number, key, sample, seed, content, suffix, bounds, prompt_tokens = fields[:8]
    attempt, server, started, seconds, retry = fields[8:13]
    try:
        return Record(
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
            attempt=attempt,
            server=server,
            started=started,
            seconds=seconds,
            outcome=_output(entry.word, *fields[13:])
            if entry.kind == Kind.OUTPUT
            else _failure(*fields[13:]),
            retry=retry,
        )
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error


def _output(
    word: int, ids: bytes, finish: str, matched: int | str | None, cached: int, expected: int
) -> Output:
    return Output(ids_of(word, ids), FinishReason(finish, matched), cached, expected)


def _failure(code: str, stage: str, message: str) -> Failure:
    return Failure(FailureCode(code), Stage(stage), message)
