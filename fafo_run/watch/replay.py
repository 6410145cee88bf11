"""Sends one recorded item again, and holds the answer against what was recorded. Writes nothing.

What is sent comes from the record and its artifact, not from prompts and rows as they are now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, fields

from fafo_build.bake.store import OtherFormatError, artifact_path, read_artifact, read_named, tokenizer_path
from fafo_build.errors import DeclarationError, EngineError, FafoError, Problem
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Answer, Capabilities, Engine, Prefix, Rejected, Request, Unavailable
from fafo_run.engines.launch_run import with_up
from fafo_run.engines.open import open_engines
from fafo_run.engines.repeat import Repeatability, repeatability, weaker
from fafo_run.item import Ids, Output, Record, Value
from fafo_run.prompt import PromptEncoder
from fafo_run.run.plan import RunPlan
from fafo_run.watch.comparison import Again, Change, Replayed, compared
from fafo_run.watch.show import Shown

_NAMED = 5
"""Items that an error names."""


def chosen(found: list[Shown], name: str) -> Record:
    """Return the record of the one item that `name` means and that has an output.

    Raises `DeclarationError` when there are several, or none.
    """
    with_output = [each.record for each in found if isinstance(each.record.outcome, Output)]
    if not with_output:
        raise DeclarationError.of(
            f'the item "{name}" has no output: there is nothing to compare an answer with',
            cure="`fafo retry` has it asked again",
        )
    if len(with_output) > 1:
        raise _several(with_output, name)
    return with_output[0]


def _several(records: list[Record], name: str) -> FafoError:
    """Return the error that names several items by what they differ in."""
    known = [_traits(record) for record in records]
    differing = [trait for trait in known[0] if len({traits[trait] for traits in known}) > 1]
    told = [
        f"{record.identity.hex()[:12]} ({', '.join(f'{trait} {traits[trait]}' for trait in differing)})"
        for record, traits in zip(records[:_NAMED], known, strict=False)
    ]
    more = f" and {len(records) - _NAMED} more" if len(records) > _NAMED else ""
    return DeclarationError.of(
        f'"{name}" names {len(records)} items, which differ in {" and ".join(differing)}: '
        f"{', '.join(told)}{more}",
        cure="name one by its identity" + (", or choose with --class" if "class" in differing else ""),
    )


def _traits(record: Record) -> dict[str, str]:
    """Return all that makes an item another one, as people are told it."""
    of = record.provenance
    return {
        "class": of.class_name,
        "source": of.source,
        "key": record.key,
        "sample": str(record.sample),
        "artifact": of.artifact[:8],
        "parameters": of.sampling_hash[:8],
        "model": of.model_fingerprint[:8],
        "row": record.content_hash.hex()[:8],
    }


async def replay(plan: RunPlan, record: Record, times: int) -> Replayed:
    """Send the item so often, one after the other, and compare. To the server that answered it, if the plan's
    engine still has it; else to the first.

    Raises `BakeError` when its artifact isn't in build/ any more, `EngineError` when the engine can't be
    started, is down, or refuses the item.
    """
    encoder = _encoder(plan.view.project.build_dir, record)
    asked = _request(encoder.prefix, record)
    engine = _engine(plan, record.server)
    try:
        limits = await engine.start()
        answers = await _answers(engine, limits, asked, times)
    finally:
        await engine.stop()
    then = record.provenance
    expected = weaker(
        repeatability(then.engine, then.engine_settings, then.sampling),
        repeatability(limits.engine, limits.settings, then.sampling),
    )
    return _replayed(record, encoder, expected, tuple(_changes(record, limits, plan)), answers)


def _replayed(
    record: Record,
    encoder: PromptEncoder,
    expected: Repeatability,
    changes: tuple[Change, ...],
    answers: list[Answer],
) -> Replayed:
    assert isinstance(record.outcome, Output)
    recorded = record.outcome.ids.ids
    return Replayed(
        record=record,
        recorded=Again(
            ids=recorded,
            text=encoder.text_of(recorded),
            finish_reason=record.outcome.finish_reason.type,
            cached_tokens=record.outcome.cached_tokens,
            server=record.server,
            seconds=record.seconds,
        ),
        expected=expected,
        changes=changes,
        answers=tuple(
            compared(
                recorded,
                Again(
                    ids=each.ids,
                    text=encoder.text_of(each.ids),
                    finish_reason=each.finish_reason.type,
                    cached_tokens=each.cached_tokens,
                    server=each.server,
                    seconds=each.seconds,
                ),
                encoder.text_of,
            )
            for each in answers
        ),
    )


async def _answers(engine: Engine, limits: Capabilities, asked: Request, times: int) -> list[Answer]:
    answers = []
    try:
        if limits.prefix_cache and asked.prefix.ids:
            # As in a run, where its prefix was warm.
            await engine.warm(asked.prefix)
        for number in range(times):
            (found,) = await engine.generate([evolve(asked, attempt=number + 1)])
            if isinstance(found, Rejected):
                raise EngineError.of(
                    f"the engine refuses the item: {found.message}",
                    cure="choose the engine that answered it with --engine, or see to the server",
                )
            answers.append(found)
    except Unavailable as error:
        raise EngineError.of(f"the engine doesn't answer: {error}", cure="see to the server") from error
    return answers


def _encoder(build: Path, record: Record) -> PromptEncoder:
    artifact = record.provenance.artifact
    cure = "a replay needs the artifact that the item was made with: get build/ back from when it was made"
    if not artifact_path(build, artifact).exists():
        raise DeclarationError.of(f"the artifact {artifact[:8]} isn't in build/ any more", cure=cure)
    try:
        found = read_artifact(build, artifact)
    except OtherFormatError as error:
        raise DeclarationError(Problem(error.problems[0].message, cure=cure)) from error
    return PromptEncoder(found, read_named(tokenizer_path(build, found.tokenizer), found.tokenizer))


def _request(prefix: Ids, record: Record) -> Request:
    return Request(
        identity=record.identity,
        attempt=1,
        prefix=Prefix(record.provenance.artifact, prefix),
        suffix=record.suffix.ids,
        sampling=sampling_of(record.provenance.sampling),
        seed=record.seed,
    )


def sampling_of(values: Mapping[str, Value]) -> Sampling:
    """Return sampling parameters from what a record's provenance says of them."""
    known = {field.name for field in fields(Sampling)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }
    return Sampling(**given)


def _engine(plan: RunPlan, server: str) -> Engine:
    """Return the engine of the server that answered, if it is one of the plan's; else the first."""
    spec = with_up(plan.engine, plan.view.project.runs_dir)
    if spec.launch is not None:
        raise EngineError.of(
            "the engine's servers aren't up, and a replay starts none",
            cure="`fafo engine up`, then replay, or choose another engine with --engine",
        )
    if server and server in {url.rstrip("/") for url in spec.urls}:
        spec = evolve(spec, urls=(server,))
    facts = plan.facts
    return open_engines(
        spec,
        plan.model,
        root=plan.view.project.root,
        vocab_size=facts.vocab_size,
        context_length=facts.context_length,
        eos_ids=facts.eos_ids,
    )[0]


def _changes(record: Record, limits: Capabilities, plan: RunPlan) -> Iterator[Change]:
    """Yield what of the engine isn't as it was."""
    then = record.provenance
    fingerprint = plan.view.classes[0].model_fingerprint
    pairs: list[tuple[str, Value, Value]] = [
        ("engine", then.engine, limits.engine),
        ("version", then.engine_version, limits.version),
        ("server", record.server, limits.server),
        ("model fingerprint", then.model_fingerprint, fingerprint),
    ]
    names = sorted({*then.engine_settings, *limits.settings})
    pairs += [(name, then.engine_settings.get(name), limits.settings.get(name)) for name in names]
    yield from (Change(what, old, new) for what, old, new in pairs if old != new)
