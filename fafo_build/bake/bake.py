"""`fafo build`: plan, bake what is stale, write artifacts, then the lock; and what a run reads back of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property

from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.artifact import Artifact
from fafo_build.bake.canonical import sha256
from fafo_build.bake.compile import ReadyModel, compile_class, ready
from fafo_build.bake.lock import (
    Lock,
    LockedClass,
    LockedModel,
    encode_lock,
    library_versions,
    lock_path,
    read_lock,
)
from fafo_build.bake.plan import BuildPlan, ClassPlan, plan_build
from fafo_build.bake.shared import Shared, shared_prefix
from fafo_build.errors import BakeError, FafoError, Problem
from fafo_build.project.declaration import Model, Project
from fafo_build.tokens.encoder import TextEncoder
from fafo_build.tokens.model_files import load_model


@frozen
class ClassReport:
    """What became of one class."""

    plan: ClassPlan
    artifact: Artifact
    changed: bool
    """Whether the artifact is another than the lock said before; False when only the lock was behind."""


@frozen
class BuildReport:
    """What a build did, or would do (`check`)."""

    plan: BuildPlan
    classes: tuple[ClassReport, ...]
    """In the order of their names."""
    shared: tuple[Shared, ...]
    """Which classes begin alike."""
    is_current: bool
    """Whether build/ was already what the sources give."""
    seconds: float


@frozen(slots=False)
class BakedModel:
    """What a run needs to know of a model besides its weights."""

    locked: LockedModel
    tokenizer_json: bytes

    @cached_property
    def encoder(self) -> TextEncoder:
        """The tokenizer, for all classes of the model: reading it takes a good part of a second."""
        return TextEncoder(self.tokenizer_json)


@frozen
class BakedClass:
    """What a run needs of a class."""

    artifact: Artifact
    locked: LockedClass
    model: BakedModel


@frozen
class Baked:
    """What `fafo build` left for a run."""

    lock: Lock
    classes: Mapping[str, BakedClass]
    """Every class of the project, in the order of their names."""


def build(project: Project, *, check: bool = False) -> BuildReport:
    """Bring build/ up to date; with `check` only say whether it is, and write nothing.

    Several builds at once take turns. Raises `BakeError`, `TemplateError` or `ModelError` with the problems
    of all classes of one kind; nothing is written then.
    """
    if check:
        return _build(project, write=False)
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
        return _build(project, write=True)
    finally:
        turn.release()


def load_baked(project: Project) -> Baked:
    """Return the artifacts of all classes, as the lock names them.

    Raises `BakeError` when the project wasn't built, a class isn't in the lock, or a file is missing or
    damaged. Whether build/ is what the sources give is `plan_build`'s question.
    """
    lock = read_lock(project.build_dir)
    if lock is None:
        raise BakeError(Problem("the project isn't built yet", cure=store.REBUILD))
    missing = [name for name in sorted(project.classes) if name not in lock.classes]
    if missing:
        raise BakeError(
            Problem("this class isn't built yet", field=f"class.{name}", cure=store.REBUILD)
            for name in missing
        )
    models = {
        name: BakedModel(
            locked,
            store.read_named(store.tokenizer_path(project.build_dir, locked.tokenizer), locked.tokenizer),
        )
        for name, locked in lock.models.items()
    }
    classes = {}
    for name in sorted(project.classes):
        locked_class = lock.classes[name]
        artifact = store.read_artifact(project.build_dir, locked_class.artifact)
        classes[name] = BakedClass(artifact, locked_class, models[locked_class.model])
    return Baked(lock, classes)


def _build(project: Project, *, write: bool) -> BuildReport:
    begun = time.monotonic()
    plan = plan_build(project)
    models = _ready_models(project, plan)
    reports, problems = [], []
    for waiting in plan.classes:
        try:
            reports.append(_bake(project, waiting, models))
        except FafoError as error:
            problems.append(error)
    if problems:
        raise type(problems[0])(problem for error in problems for problem in error.problems)
    if write and not plan.is_current:
        _write(project, plan, reports, models)
    return BuildReport(
        plan=plan,
        classes=tuple(reports),
        shared=shared_prefix({report.plan.name: report.artifact for report in reports}),
        is_current=plan.is_current,
        seconds=time.monotonic() - begun,
    )


def _ready_models(project: Project, plan: BuildPlan) -> dict[str, ReadyModel]:
    """Load the models of the classes that are to be baked; transformers is slow to import, so only if there
    are.
    """
    names = sorted({project.classes[waiting.name].model for waiting in plan.waiting})
    declared = {name: project.models[name] for name in names}
    return {
        name: ready(load_model(model, project.root), name, model.date) for name, model in declared.items()
    }


def _bake(project: Project, plan: ClassPlan, models: Mapping[str, ReadyModel]) -> ClassReport:
    declared = project.classes[plan.name]
    if plan.state == "current" and plan.locked is not None:
        return ClassReport(plan, store.read_artifact(project.build_dir, plan.locked.artifact), False)
    artifact = compile_class(project, declared, models[declared.model])
    return ClassReport(plan, artifact, plan.locked is None or plan.locked.artifact != artifact.hash)


def _write(
    project: Project, plan: BuildPlan, reports: list[ClassReport], models: Mapping[str, ReadyModel]
) -> None:
    """Write what the lock will name before the lock, so that a lock never names what isn't there."""
    build_dir = project.build_dir
    for model in models.values():
        path = store.tokenizer_path(build_dir, model.tokenizer)
        if not store.is_whole(path, model.tokenizer):
            store.write(path, model.tokenizer_json)
    for report in reports:
        path = store.artifact_path(build_dir, report.artifact.hash)
        if not store.is_whole(path, report.artifact.hash):
            store.write(path, report.artifact.encoded)
    store.write(lock_path(build_dir), encode_lock(_lock(project, plan, reports, models)))


def _lock(
    project: Project, plan: BuildPlan, reports: list[ClassReport], models: Mapping[str, ReadyModel]
) -> Lock:
    used = sorted({project.classes[report.plan.name].model for report in reports})
    before = plan.lock.models if plan.lock else {}
    return Lock(
        versions=library_versions(),
        models={
            name: _locked_model(models[name], project.models[name]) if name in models else before[name]
            for name in used
        },
        classes={report.plan.name: _locked_class(report, project) for report in reports},
    )


def _locked_model(model: ReadyModel, declared: Model) -> LockedModel:
    loaded = model.loaded
    return LockedModel(
        path=declared.path,
        revision=declared.revision,
        date=declared.date.isoformat() if declared.date else None,
        trust_remote_code=declared.trust_remote_code,
        config_sha256=loaded.config_sha256,
        tokenizer=model.tokenizer,
        chat_template_sha256=sha256(loaded.chat_template.encode("utf-8")),
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
        slots=len(artifact.slots),
        tail_tokens=len(artifact.spans[-1].ids),
        inputs=report.plan.inputs,
    )
