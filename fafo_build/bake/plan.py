"""What a build would do, and why, as a value: the lock compared with the inputs. It loads no model and
bakes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal

from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.lock import Lock, LockedClass, LockedModel, library_versions, read_lock
from fafo_build.errors import BakeError, FafoError, Problem
from fafo_build.project.declaration import Model, Project, PromptClass
from fafo_build.render.checks import check
from fafo_build.render.sources import gather
from fafo_build.tokens.model_files import input_hashes

State = Literal["new", "stale", "current"]


@frozen
class ClassPlan:
    """What is to be done for one class."""

    name: str
    state: State
    reasons: tuple[str, ...]
    """Why it isn't current: `prompts/common.md changed`. Empty when it is."""
    inputs: Mapping[str, str]
    """The files that it is made from now, relative to the project: name to sha256."""
    locked: LockedClass | None
    """What the lock says of it."""


@frozen
class BuildPlan:
    """What a build would do."""

    classes: tuple[ClassPlan, ...]
    """In the order of their names."""
    gone: tuple[str, ...]
    """Classes of the lock that the project doesn't have any more."""
    orphans: tuple[str, ...]
    """Hashes of artifacts in build/ that no class of the lock has. They stay while results refer to them."""
    lock: Lock | None
    """The lock as it is; None if there is none, or none that can be read."""

    @property
    def is_current(self) -> bool:
        """Whether build/ is what the sources give."""
        return not self.gone and all(plan.state == "current" for plan in self.classes)

    @property
    def waiting(self) -> tuple[ClassPlan, ...]:
        """The classes that are to be baked."""
        return tuple(plan for plan in self.classes if plan.state != "current")


def plan_build(project: Project) -> BuildPlan:
    """Find out which classes are new or stale.

    Raises the problems of all classes at once: `TemplateError` for prompts that can't be read, `BakeError`
    for a lock of a newer format; `ModelError` for a model that isn't there.
    """
    lock = read_lock(project.build_dir)
    known = lock or Lock(versions={})
    everywhere = tuple(_version_changes(known)) if lock else ()
    models = {
        name: tuple(_model_changes(known.models.get(name), project.models[name], project))
        for name in sorted({declared.model for declared in project.classes.values()})
    }
    plans = []
    problems: list[FafoError] = []
    for name, declared in sorted(project.classes.items()):
        try:
            inputs = class_inputs(project, declared)
        except FafoError as error:
            problems.append(error)
            continue
        locked = known.classes.get(name)
        plans.append(
            _plan(project, name, declared, inputs, locked, known, (*everywhere, *models[declared.model]))
        )
    if problems:
        raise type(problems[0])(problem for error in problems for problem in error.problems)
    current = {locked.artifact for locked in known.classes.values()}
    present = sorted(path.stem for path in (project.build_dir / "artifacts").glob("*.json"))
    return BuildPlan(
        classes=tuple(plans),
        gone=tuple(sorted(set(known.classes) - set(project.classes))),
        orphans=tuple(name for name in present if name not in current),
        lock=lock,
    )


def class_inputs(project: Project, declared: PromptClass) -> dict[str, str]:
    """Return every file that a class is made from: the class file, its prompts transitively, its examples.

    What can be said of prompts without a model is checked here too, so that all mistakes come at once.
    Raises `TemplateError` when prompts can't be read, `BakeError` when another file can't.
    """
    prompts = gather(project, declared)
    check(prompts, declared.vars)
    inputs = dict(prompts.files)
    others = [(declared.file, f"class.{declared.name}")]
    if declared.examples is not None:
        others.append((declared.examples.path, f"class.{declared.name}.examples.path"))
    for file, field in others:
        try:
            content = (project.root / file).read_bytes()
        except OSError as error:
            message = f'"{file}" can\'t be read: {error.strerror}'
            cure = "name a file in the project"
            raise BakeError(Problem(message, file=declared.file, field=field, cure=cure)) from error
        inputs[file] = hashlib.sha256(content).hexdigest()
    return dict(sorted(inputs.items()))


def _plan(
    project: Project,
    name: str,
    declared: PromptClass,
    inputs: Mapping[str, str],
    locked: LockedClass | None,
    lock: Lock,
    shared: tuple[str, ...],
) -> ClassPlan:
    if locked is None:
        return ClassPlan(name, "new", ("not built yet",), inputs, None)
    reasons = [*_input_changes(locked.inputs, inputs), *shared]
    if locked.model != declared.model:
        reasons.append(f"its model was {locked.model}, and is {declared.model}")
    if not store.is_whole(store.artifact_path(project.build_dir, locked.artifact), locked.artifact):
        reasons.append(f"its artifact {locked.artifact[:8]} is missing or damaged")
    model = lock.models.get(declared.model)
    if model and not store.is_whole(
        store.tokenizer_path(project.build_dir, model.tokenizer), model.tokenizer
    ):
        reasons.append(f"its tokenizer {model.tokenizer[:8]} is missing or damaged in build/")
    return ClassPlan(name, "stale" if reasons else "current", tuple(reasons), inputs, locked)


def _version_changes(lock: Lock) -> Iterator[str]:
    for name, version in library_versions().items():
        before = lock.versions.get(name)
        if before != version:
            yield f"{name} was {before}, and is {version}"


def _model_changes(locked: LockedModel | None, declared: Model, project: Project) -> Iterator[str]:
    now = input_hashes(declared, project.root)
    if locked is None:
        yield f"the model {declared.name} isn't in the lock"
        return
    date = declared.date.isoformat() if declared.date else None
    pairs = (
        ("path", locked.path, declared.path),
        ("revision", locked.revision, declared.revision),
        ("date", locked.date, date),
        ("trust_remote_code", locked.trust_remote_code, declared.trust_remote_code),
    )
    for key, before, after in pairs:
        if before != after:
            yield f"model {declared.name}: {key} was {before}, and is {after}"
    yield from _input_changes(locked.inputs, now)


def _input_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in now:
            yield f"{name} is no longer used"
        elif name not in before:
            yield f"{name} is new"
        elif before[name] != now[name]:
            yield f"{name} changed"
