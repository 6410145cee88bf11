"""How the outcomes of a run become records: provenance, outputs, failures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

from attrs import evolve, frozen

from fafo_run.engines.base import Answer, Capabilities, Rejected
from fafo_run.item import (
    Claim,
    Failure,
    FailureCode,
    Ids,
    Output,
    Provenance,
    QueuedItem,
    Record,
    Stage,
    pack_ids,
)
from fafo_run.prompt import Prompt
from fafo_run.run.view import ClassView, ViewItem
from fafo_run.version import VERSION


def provenance(of: ClassView, source: str, engine: Capabilities | None = None) -> Provenance:
    """Return what all items of a class and a source share: in the queue without an engine, then with it."""
    shared = Provenance(
        class_name=of.name,
        source=source,
        artifact=of.artifact.hash,
        model=of.model_name,
        model_fingerprint=of.model_fingerprint,
        sampling=of.sampling_values(),
        sampling_hash=of.sampling_hash,
        fafo_version=VERSION,
    )
    if engine is None:
        return shared
    return evolve(
        shared, engine=engine.engine, engine_version=engine.version, engine_settings=engine.settings
    )


def ceiling(prefix: Ids, prompt_tokens: int, page_size: int) -> int:
    """Return how many prompt tokens a perfect cache would serve once the prefix is warm.

    The last token of a prompt is always computed, and caches hold whole pages (architecture.md section 8).
    """
    return min(len(prefix), prompt_tokens - 1) // page_size * page_size


def answered(claim: Claim, answer: Answer, shared: Provenance, expected: int) -> Record:
    """Return the record of an output."""
    outcome = Output(
        ids=answer.ids,
        finish_reason=answer.finish_reason,
        cached_tokens=answer.cached_tokens,
        expected_cached_tokens=expected,
    )
    return _of_claim(claim, shared, outcome, answer.server, answer.started, answer.seconds)


def rejected(claim: Claim, rejection: Rejected, shared: Provenance) -> Record:
    """Return the record of an item that the engine refused."""
    outcome = Failure(rejection.code, Stage.ENGINE, rejection.message)
    return _of_claim(claim, shared, outcome, rejection.server, time.time(), 0.0)


@frozen
class Lost:
    """An attempt that brought no output."""

    reason: str
    code: FailureCode = FailureCode.ATTEMPTS_EXHAUSTED
    """What the item fails as when all of its attempts were lost so."""


def exhausted(claim: Claim, shared: Provenance, history: Sequence[Lost], attempts: int) -> Record:
    """Return the record of an item that so many attempts brought no output for; outages aren't among them.

    `history` has them, the last one last, but for those of earlier runs: how these ended isn't known.
    """
    codes, earlier = {lost.code for lost in history}, attempts - len(history)
    code = codes.pop() if len(codes) == 1 and earlier <= 0 else FailureCode.ATTEMPTS_EXHAUSTED
    before = f"{earlier} in an earlier run; " if earlier > 0 else ""
    what = "valid answer" if code is FailureCode.ANSWER_INVALID else "answer"
    message = f"no {what} after {attempts} attempts: {before}{_told([lost.reason for lost in history])}"
    return _failed(claim, shared, Failure(code, Stage.ENGINE, message))


def unsendable(claim: Claim, shared: Provenance, failure: Failure) -> Record:
    """Return the record of an item that no engine was asked for."""
    return evolve(_failed(claim, shared, failure), attempt=0)


def too_long(claim: Claim, wanted: int, context: int) -> Failure | None:
    """Return why an item of so many `wanted` new tokens doesn't fit the engine's context; None if it does.

    It was queued by somebody who knew the model's context only, or another engine's.
    """
    prompt = claim.item.prompt_tokens
    if prompt + wanted <= context:
        return None
    message = f"{prompt} prompt tokens and {wanted} new ones are more than the engine's context of {context}"
    return Failure(FailureCode.TOO_LONG, Stage.ENGINE, message)


def queued(
    item: ViewItem,
    shared: Provenance,
    seed: int,
    prompt: Prompt | None,
    lane: int,
    *,
    failure: Failure | None = None,
    retry: int = 0,
) -> QueuedItem:
    """Return the queue's entry for an item; `failure` says why it can't be sent as it is."""
    return QueuedItem(
        identity=item.identity,
        provenance=shared,
        key=item.row.key,
        sample=item.sample,
        seed=seed,
        content_hash=item.row.content_hash,
        suffix=pack_ids(prompt.suffix if prompt else ()),
        bounds=prompt.bounds if prompt else (),
        prompt_tokens=prompt.prompt_tokens if prompt else 0,
        lane=lane,
        retry=retry,
        failure=failure,
    )


def put_back(record: Record, shared: Provenance) -> QueuedItem:
    """Return the queue's entry that has an engine asked once more for an item that failed there."""
    return QueuedItem(
        identity=record.identity,
        provenance=shared,
        key=record.key,
        sample=record.sample,
        seed=record.seed,
        content_hash=record.content_hash,
        suffix=record.suffix,
        bounds=record.bounds,
        prompt_tokens=record.prompt_tokens,
        lane=record.lane,
        retry=record.retry + 1,
    )


def _told(history: Sequence[str]) -> str:
    """Return reasons in one line, those that follow each other and are the same once."""
    told = [(reason, len(list(same))) for reason, same in groupby(history)]
    return ", then ".join(f"{reason} ({count} times)" if count > 1 else reason for reason, count in told)


def _failed(claim: Claim, shared: Provenance, failure: Failure) -> Record:
    return _of_claim(claim, shared, failure, "", time.time(), 0.0)


def _of_claim(
    claim: Claim, shared: Provenance, outcome: Output | Failure, server: str, started: float, seconds: float
) -> Record:
    item = claim.item
    return Record(
        identity=item.identity,
        provenance=shared,
        key=item.key,
        sample=item.sample,
        seed=item.seed,
        content_hash=item.content_hash,
        suffix=item.suffix,
        bounds=item.bounds,
        prompt_tokens=item.prompt_tokens,
        lane=item.lane,
        attempt=item.attempts + 1,
        server=server,
        started=started,
        seconds=seconds,
        outcome=outcome,
        retry=item.retry,
    )
