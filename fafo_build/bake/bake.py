"""`fafo build`: plan, bake what is stale, write artifacts, then the lock; then drop what nothing uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.artifact import Artifact
from fafo_build.bake.canonical import sha256
from fafo_build.bake.garbage import Garbage, collect, find_garbage
from fafo_build.bake.history import (
    History,
    encode_history,
    history_path,
    previous,
    read_history,
    remembered,
)
from fafo_build.bake.lock import Lock, LockedClass, LockedModel, encode_lock, library_versions, lock_path
from fafo_build.bake.plan import BuildPlan, ClassPlan, plan_build, prompts_folder
from fafo_build.bake.sampling import check_sampling
from fafo_build.bake.tree import PrefixTree, prefix_trees
from fafo_build.errors import BakeError, FafoError, Problem
from fafo_build.project.declaration import Model, Project

if TYPE_CHECKING:
    from fafo_build.bake.compile import ReadyModel


@frozen
class ClassReport:
    """What became of one class."""

    plan: ClassPlan
    artifact: Artifact
    changed: bool
    """Whether the artifact is another than the lock said before; False when only the lock was behind."""
    glue_tokens: int
    """Constant tokens before the first hole that go with each item, since no cut lies nearer to it."""


@frozen
class BuildReport:
    """What a build did, or would do (`check`)."""

    plan: BuildPlan
    classes: tuple[ClassReport, ...]
    """In the order of their names."""
    shared: tuple[PrefixTree, ...]
    """Which classes begin alike, per model."""
    is_current: bool
    """Whether build/ was already what the sources give."""
    garbage: tuple[Garbage, ...] | None
    """What nothing uses any more: dropped, or with `check` still there. None when that wasn't asked."""
    seconds: float


def build(
    project: Project,
    *,
    check: bool = False,
    used: Callable[[], Collection[str]] | None = None,
    accept: Callable[[Mapping[str, Artifact]], None] | None = None,
) -> BuildReport:
    """Bring build/ up to date; with `check` only say whether it is, and write nothing.

    With `used`, which returns the hashes of the artifacts that results and queues refer to, it also drops
    what neither these nor the classes, as they are and as they last were, need. `accept` gets the artifacts
    of the classes that are baked anew, and may raise for what only a run can know of them.

    Several builds at once take turns. Raises `BakeError`, `TemplateError` or `ModelError` with the problems
    of all classes of one kind; nothing is written then. What `used` raises comes after the build: then
    nothing is dropped.
    """
    if check:
        return _build(project, write=False, used=used, accept=accept)
    from filelock import FileLock

    turn = FileLock(project.build_dir / ".lock")
    try:
        project.build_dir.mkdir(parents=True, exist_ok=True)
        turn.acquire()
    except OSError as error:
        raise BakeError(
            Problem(
                f"can't be written: {error.strerror}",
                file=project.build_dir.name,
                cure="mend the permissions",
            )
        ) from error
    try:
        store.sweep(project.build_dir)
        return _build(project, write=True, used=used, accept=accept)
    finally:
        turn.release()


def bake_class(project: Project, name: str) -> tuple[Artifact, bytes]:
    """Return what the sources give for one class now, and the tokenizer's JSON. Writes nothing.

    Raises `BakeError`, `TemplateError` or `ModelError`.
    """
    from fafo_build.bake.compile import compile_class

    declared = project.classes[name]
    model = _ready_model(project, declared.model)
    return compile_class(project, declared, model), model.tokenizer_json


def _build(
    project: Project,
    *,
    write: bool,
    used: Callable[[], Collection[str]] | None,
    accept: Callable[[Mapping[str, Artifact]], None] | None,
) -> BuildReport:
    begun = time.monotonic()
    plan = plan_build(project)
    names = sorted({project.classes[waiting.name].model for waiting in plan.waiting})
    models = {name: _ready_model(project, name) for name in names}
    reports, problems = [], []
    for waiting in plan.classes:
        try:
            reports.append(_bake(project, waiting, models, plan.lock))
        except FafoError as error:
            problems.append(error)
    if problems:
        raise type(problems[0])(problem for error in problems for problem in error.problems)
    if accept is not None:
        accept({each.plan.name: each.artifact for each in reports if each.plan.state != "current"})
    history = _history(project, reports, used is not None)
    lock = plan.lock
    if lock is None or not plan.is_current:
        lock = _lock(project, plan, reports, models)
        if write:
            _write(project, reports, models, history, lock)
    garbage = None
    if used is not None:
        garbage = find_garbage(project.build_dir, _needed(project, lock, history) | set(used()), lock)
        if write:
            collect(project.build_dir, garbage)
    return BuildReport(
        plan=plan,
        classes=tuple(reports),
        shared=prefix_trees({report.plan.name: report.artifact for report in reports}),
        is_current=plan.is_current,
        garbage=garbage,
        seconds=time.monotonic() - begun,
    )


def _ready_model(project: Project, name: str) -> ReadyModel:
    """Load a model. What that needs takes seconds to import, so this is only for classes that are baked."""
    from fafo_build.bake.compile import ready
    from fafo_build.tokens.model_files import load_model

    model = project.models[name]
    return ready(load_model(model, project.root), name, model.date)


def _bake(
    project: Project, plan: ClassPlan, models: Mapping[str, ReadyModel], lock: Lock | None
) -> ClassReport:
    if plan.state == "current" and lock is not None:
        locked = lock.classes[plan.name]
        artifact = store.read_artifact(project.build_dir, locked.artifact)
        return ClassReport(plan, artifact, False, locked.glue_tokens)
    from fafo_build.bake.assemble import glue_tokens
    from fafo_build.bake.compile import compile_class

    declared = project.classes[plan.name]
    model = models[declared.model]
    check_sampling(project, declared, model.loaded.vocab_size)
    artifact = compile_class(project, declared, model, plan.prompts)
    return ClassReport(plan, artifact, plan.before != artifact.hash, glue_tokens(artifact, model.encoder))


def _history(project: Project, reports: list[ClassReport], needed: bool) -> History:
    """Return the history as it is after this build; it is read only where it matters."""
    changes = {
        report.plan.name: (report.plan.before, report.artifact.hash)
        for report in reports
        if report.changed and report.plan.before is not None
    }
    return remembered(read_history(project.build_dir), changes) if changes or needed else {}


def _needed(project: Project, lock: Lock, history: History) -> set[str]:
    """Return the artifacts that the classes have, and those that they had before these."""
    now = {name: entry.artifact for name, entry in lock.classes.items()}
    before = (previous(project.build_dir, history, name, made) for name, made in now.items())
    return {*now.values(), *(made for made in before if made is not None)}


def _write(
    project: Project,
    reports: list[ClassReport],
    models: Mapping[str, ReadyModel],
    history: History,
    lock: Lock,
) -> None:
    """Write what the lock will name before the lock, so that a lock never names what isn't there."""
    build_dir = project.build_dir
    files = {}
    for model in models.values():
        path = store.tokenizer_path(build_dir, model.tokenizer)
        if not store.is_whole(path, model.tokenizer):
            files[path] = model.tokenizer_json
    for report in reports:
        path = store.artifact_path(build_dir, report.artifact.hash)
        if not store.is_whole(path, report.artifact.hash):
            files[path] = report.artifact.encoded
    store.write_all(files)
    if history:
        store.write(history_path(build_dir), encode_history(history))
    store.write(lock_path(build_dir), encode_lock(lock))


def _lock(
    project: Project, plan: BuildPlan, reports: list[ClassReport], models: Mapping[str, ReadyModel]
) -> Lock:
    used = sorted({project.classes[report.plan.name].model for report in reports})
    before = plan.lock.models if plan.lock else {}
    return Lock(
        prompts=prompts_folder(project),
        versions=library_versions(),
        models={
            name: _locked_model(models[name], project.models[name]) if name in models else before[name]
            for name in used
        },
        classes={report.plan.name: _locked_class(report, project) for report in reports},
    )


def _locked_model(model: ReadyModel, declared: Model) -> LockedModel:
    loaded, template = model.loaded, model.loaded.chat_template
    return LockedModel(
        path=declared.path,
        revision=declared.revision,
        date=declared.date.isoformat() if declared.date else None,
        trust_remote_code=declared.trust_remote_code,
        config_sha256=loaded.config_sha256,
        tokenizer=model.tokenizer,
        chat_template_sha256=None if template is None else sha256(template.encode("utf-8")),
        context_length=loaded.context_length,
        vocab_size=loaded.vocab_size,
        eos_ids=loaded.eos_ids,
        inputs=loaded.inputs,
    )


def _locked_class(report: ClassReport, project: Project) -> LockedClass:
    artifact = report.artifact
    return LockedClass(
        model=project.classes[report.plan.name].model,
        artifact=artifact.hash,
        prefix_tokens=len(artifact.prefix),
        glue_tokens=report.glue_tokens,
        slots=len(artifact.slots),
        tail_tokens=len(artifact.spans[-1].ids),
        inputs=report.plan.inputs,
    )
