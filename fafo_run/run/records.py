"""How the outcomes of a run become records: provenance, outputs, failures."""

from __future__ import annotations

import time

from attrs import evolve

from fafo_run.engines.base import Answer, Capabilities, Rejected
from fafo_run.item import Claim, Failure, FailureCode, Ids, Output, Provenance, QueuedItem, Record, Stage
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


def exhausted(claim: Claim, shared: Provenance, attempts: int, last: str) -> Record:
    """Return the record of an item that so many attempts brought no answer for; outages aren't among them."""
    message = f"no answer after {attempts} attempts; the last one: {last}"
    outcome = Failure(FailureCode.ATTEMPTS_EXHAUSTED, Stage.ENGINE, message)
    return _of_claim(claim, shared, outcome, "", time.time(), 0.0)


def failed_early(
    item: ViewItem, shared: Provenance, seed: int, failure: Failure, prompt: Prompt | None, lane: int
) -> Record:
    """Return the record of an item that never reached the queue."""
    return Record(
        identity=item.identity,
        provenance=shared,
        key=item.row.key,
        sample=item.sample,
        seed=seed,
        content_hash=item.row.content_hash,
        suffix=prompt.suffix if prompt else (),
        bounds=prompt.bounds if prompt else (),
        prompt_tokens=prompt.prompt_tokens if prompt else 0,
        lane=lane,
        attempt=0,
        server="",
        started=time.time(),
        seconds=0.0,
        outcome=failure,
    )


def queued(item: ViewItem, shared: Provenance, seed: int, prompt: Prompt, lane: int) -> QueuedItem:
    """Return the queue's entry for an item."""
    return QueuedItem(
        identity=item.identity,
        provenance=shared,
        key=item.row.key,
        sample=item.sample,
        seed=seed,
        content_hash=item.row.content_hash,
        suffix=prompt.suffix,
        bounds=prompt.bounds,
        prompt_tokens=prompt.prompt_tokens,
        lane=lane,
    )


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
        attempt=claim.attempt,
        server=server,
        started=started,
        seconds=seconds,
        outcome=outcome,
    )
