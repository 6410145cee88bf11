"""The payload of a results entry: a `Record` without what its segment's header and provenance say."""

from __future__ import annotations

from collections.abc import Callable

from fafo_run.item import Failure, FailureCode, FinishReason, Ids, Output, Provenance, Record, Stage
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


def draft(record: Record, cache: ProvenanceCache) -> Draft:
    """Return a record as the appender takes it. Raises `ValueError` for a hash that isn't 64 hex digits."""
    said = record.provenance
    route = route_of(said.model_fingerprint, said.artifact, record.lane)
    outcome = record.outcome

    def pack(number: int) -> tuple[int, bytes]:
        ids: Ids = outcome.ids if isinstance(outcome, Output) else ()
        wide, (suffix, answer) = pack_ids(record.suffix, ids)
        common = (
            number, record.key, record.sample, record.seed, record.content_hash, suffix,
            pack_bounds(record.bounds), record.prompt_tokens, record.attempt, record.server,
            record.started, record.seconds,
        )  # fmt: skip
        if isinstance(outcome, Output):
            reason = outcome.finish_reason
            cached = (outcome.cached_tokens, outcome.expected_cached_tokens)
            return Kind.OUTPUT | wide, encode((*common, answer, reason.type, reason.matched, *cached))
        failure = (outcome.code.value, outcome.stage.value, outcome.message)
        return Kind.FAILURE | wide, encode((*common, *failure))

    return Draft(route, cache.pack(said), record.identity, pack)


def read_record(entry: Entry, find: Callable[[int], Provenance], lane: int) -> Record:
    """Return the record of an OUTPUT or FAILURE entry; `find` knows provenance by number.

    Raises `Undecodable`.
    """
    fields = unpack(entry.payload, entry.kind)
    number, key, sample, seed, content, suffix, bounds, prompt_tokens = fields[:8]
    attempt, server, started, seconds = fields[8:12]
    try:
        return Record(
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
            attempt=attempt,
            server=server,
            started=started,
            seconds=seconds,
            outcome=_output(entry.word, *fields[12:])
            if entry.kind == Kind.OUTPUT
            else _failure(*fields[12:]),
        )
    except (TypeError, ValueError) as error:
        raise Undecodable(str(error)) from error


def _output(
    word: int, ids: bytes, finish: str, matched: int | str | None, cached: int, expected: int
) -> Output:
    return Output(unpack_ids(word, ids), FinishReason(finish, matched), cached, expected)


def _failure(code: str, stage: str, message: str) -> Failure:
    return Failure(FailureCode(code), Stage(stage), message)
