"""What a build would do, and why, as a value: the lock compared with the inputs. It loads no model and
bakes nothing; templates are parsed only where something changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs
from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.kwargs import kwargs_files
from fafo_build.bake.lock import Lock, LockedClass, LockedModel, OutdatedLock, find_lock, library_versions
from fafo_build.errors import BakeError, FafoError, Problem
from fafo_build.project.declaration import Model, Project, PromptClass
from fafo_build.tokens.model_files import input_hashes

if TYPE_CHECKING:
    from fafo_build.render.sources import Prompts

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
    before: str | None
    """The artifact that the lock gives it, whatever the lock's form; 64 hex digits."""
    prompts: Prompts | None = attrs.field(default=None, repr=False, eq=False)
    """Its prompts as `inputs` names them, checked; None where they weren't read, since none has changed."""


@frozen
class BuildPlan:
    """What a build would do."""

    classes: tuple[ClassPlan, ...]
    """In the order of their names."""
    gone: tuple[str, ...]
    """Classes of the lock that the project doesn't have any more."""
    lock: Lock | None
    """The lock as it is; None if there is none, or an outdated one."""

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
    planner = _Planner(project, find_lock(project.build_dir))
    plans = []
    problems: list[FafoError] = []
    for declared in sorted(project.classes.values(), key=lambda declared: declared.name):
        try:
            plans.append(planner.plan(declared))
        except FafoError as error:
            problems.append(error)
    if problems:
        raise type(problems[0])(problem for error in problems for problem in error.problems)
    return BuildPlan(
        classes=tuple(plans),
        gone=tuple(sorted(set(planner.before) - set(project.classes))),
        lock=planner.lock,
    )


def checked_prompts(project: Project, declared: PromptClass) -> Prompts:
    """Read the prompts of a class, and check what can be said of them without a model.

    Raises `TemplateError` when they can't be read, and with every mistake in them.
    """
    # Jinja takes a moment to import, and an unchanged project doesn't need it.
    from fafo_build.render.checks import check_class
    from fafo_build.render.sources import gather

    prompts = gather(project, declared)
    check_class(prompts, declared)
    return prompts


def class_inputs(project: Project, declared: PromptClass, prompts: Prompts) -> dict[str, str]:
    """Return every file that a class is made from: the class file, its prompts transitively, its examples,
    its JSON Schema.

    Raises `BakeError` when one of those that aren't prompts can't be read.
    """
    inputs = dict(prompts.files)
    others = [(declared.file, f"class.{declared.name}")]
    if declared.examples is not None:
        others.append((declared.examples.path, f"class.{declared.name}.examples.path"))
    for name, file in kwargs_files(declared).items():
        others.append((file, f"class.{declared.name}.chat_template_kwargs.{name}"))
    if declared.sampling.json_schema is not None:
        others.append((declared.sampling.json_schema, f"class.{declared.name}.sampling.json_schema"))
    for file, field in others:
        try:
            content = (project.root / file).read_bytes()
        except OSError as error:
            message = f'"{file}" can\'t be read: {error.strerror}'
            cure = "name a file in the project"
            raise BakeError(Problem(message, file=declared.file, field=field, cure=cure)) from error
        inputs[file] = hashlib.sha256(content).hexdigest()
    return dict(sorted(inputs.items()))


def prompts_folder(project: Project) -> str:
    """Return the project's prompts folder as the lock says it: without a machine's path."""
    folder = project.prompts_dir
    inside = folder.is_relative_to(project.root)
    return folder.relative_to(project.root).as_posix() if inside else folder.name


class _Planner:
    """Compares one project with one lock; every file is read once."""

    def __init__(self, project: Project, found: Lock | OutdatedLock | None) -> None:
        self.lock = found if isinstance(found, Lock) else None
        self._project = project
        self._hashes: dict[str, str | None] = {}
        self._whole: dict[Path, bool] = {}
        self._outdated = found.reason if isinstance(found, OutdatedLock) else None
        if isinstance(found, OutdatedLock):
            self.before = dict(found.artifacts)
        else:
            self.before = {name: locked.artifact for name, locked in found.classes.items()} if found else {}
        """Class to artifact, as the lock says it."""
        self._everywhere = tuple(_version_changes(found, project)) if isinstance(found, Lock) else ()
        known = found.models if isinstance(found, Lock) else {}
        self._models = {
            name: tuple(_model_changes(known.get(name), project.models[name], project))
            for name in sorted({declared.model for declared in project.classes.values()})
        }

    def plan(self, declared: PromptClass) -> ClassPlan:
        name = declared.name
        before = self.before.get(name)
        locked = self.lock.classes.get(name) if self.lock else None
        if self.lock is None or locked is None:
            read, inputs = self._read(declared)
            if self._outdated is not None:
                return ClassPlan(name, "stale", (self._outdated,), inputs, before, read)
            return ClassPlan(name, "new", ("not built yet",), inputs, before, read)
        prompts, inputs = self._inputs(declared, locked)
        reasons = [*_input_changes(locked.inputs, inputs), *self._everywhere]
        reasons += self._models[declared.model]
        if locked.model != declared.model:
            reasons.append(f"its model was {locked.model}, and is {declared.model}")
        reasons += self._losses(self.lock, locked)
        state: State = "stale" if reasons else "current"
        return ClassPlan(name, state, tuple(reasons), inputs, before, prompts)

    def _read(self, declared: PromptClass) -> tuple[Prompts, Mapping[str, str]]:
        prompts = checked_prompts(self._project, declared)
        return prompts, class_inputs(self._project, declared, prompts)

    def _inputs(self, declared: PromptClass, locked: LockedClass) -> tuple[Prompts | None, Mapping[str, str]]:
        """Return the class's prompts, None where none has changed, and its inputs. Which prompts are pulled
        in is decided by the class file, the prompts themselves, the folder they lie in, and the versions:
        while these are the same, so is the list.
        """
        inside = self._project.prompts_dir.is_relative_to(self._project.root)
        if (
            inside
            and not self._everywhere
            and declared.file in locked.inputs
            and all(self._sha256(file) == digest for file, digest in locked.inputs.items())
        ):
            return None, locked.inputs
        return self._read(declared)

    def _losses(self, lock: Lock, locked: LockedClass) -> Iterator[str]:
        build = self._project.build_dir
        if not self._is_whole(store.artifact_path(build, locked.artifact), locked.artifact):
            yield f"its artifact {locked.artifact[:8]} is missing or damaged"
        model = lock.models.get(locked.model)
        if model and not self._is_whole(store.tokenizer_path(build, model.tokenizer), model.tokenizer):
            yield f"its tokenizer {model.tokenizer[:8]} is missing or damaged in build/"

    def _is_whole(self, path: Path, digest: str) -> bool:
        if path not in self._whole:
            self._whole[path] = store.is_whole(path, digest)
        return self._whole[path]

    def _sha256(self, file: str) -> str | None:
        """Return the hash of a file of the project; None when it can't be read: `_read` says why."""
        if file not in self._hashes:
            try:
                content = (self._project.root / file).read_bytes()
            except OSError:
                self._hashes[file] = None
            else:
                self._hashes[file] = hashlib.sha256(content).hexdigest()
        return self._hashes[file]


def _version_changes(lock: Lock, project: Project) -> Iterator[str]:
    for name, version in library_versions().items():
        before = lock.versions.get(name)
        if before != version:
            yield f"{name} was {before}, and is {version}"
    folder = prompts_folder(project)
    if lock.prompts != folder:
        yield f"the prompts folder was {lock.prompts}, and is {folder}"


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
