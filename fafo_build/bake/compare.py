"""Which two artifacts `fafo diff` holds against each other. What isn't built is baked in memory only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from attrs import evolve, frozen

from fafo_build.bake import store
from fafo_build.bake.artifact import Artifact
from fafo_build.bake.bake import bake_class
from fafo_build.bake.diff import Difference, difference
from fafo_build.bake.history import previous, read_history
from fafo_build.bake.plan import ClassPlan, plan_build
from fafo_build.errors import BakeError, DeclarationError, Problem
from fafo_build.project.declaration import Project
from fafo_build.project.values import did_you_mean

_PREFIX = re.compile("[0-9a-f]{4,64}")

Side = Literal["given", "before", "build", "sources"]
"""Where an artifact comes from: named by hash, what the class had before, build/, the sources as they are."""


@frozen
class Comparison:
    """Two artifacts of one class, and what lies between them."""

    name: str
    """The class's."""
    old_is: Side
    new_is: Side
    difference: Difference | None
    """None when the class has had no artifact before this one."""
    new: Artifact
    tokenizer_json: bytes | None
    """With which the tokens can be read; None when build/ doesn't have it any more."""


def compare(project: Project, name: str, old: str | None = None) -> Comparison:
    """Compare what a class is baked to with what it was.

    `old` is the beginning of an artifact's hash. Without it: a class whose sources have changed since the
    build is compared with the build; one that is built, with the artifact that it had before.

    Raises `DeclarationError` for a class that isn't declared, `BakeError` for a hash that is unknown or
    stands for several artifacts, and what a build raises.
    """
    if name not in project.classes:
        cure = did_you_mean(name, project.classes, what="classes")
        raise DeclarationError.of(f'no class named "{name}" is declared', cure=cure)
    # Mistakes in other classes are no matter here.
    project = evolve(project, classes={name: project.classes[name]})
    (plan,) = plan_build(project).classes
    build = project.build_dir
    given = _found(build, old) if old is not None else None
    built = plan.before if plan.state == "current" else None
    if built is not None:
        before = given or previous(build, read_history(build), name, built)
    else:
        before = given or plan.before
        _check_there(plan, before)
    # Before the bake, which takes seconds: what can't be read is said at once.
    older = store.read_artifact(build, before) if before is not None else None
    if built is not None:
        new = store.read_artifact(build, built)
        tokenizer = _tokenizer_json(build, new)
    else:
        new, tokenizer = bake_class(project, name)
    return Comparison(
        name=name,
        old_is="given" if given else "build" if built is None else "before",
        new_is="sources" if built is None else "build",
        difference=difference(older, new) if older is not None else None,
        new=new,
        tokenizer_json=tokenizer,
    )


def _check_there(plan: ClassPlan, before: str | None) -> None:
    if before is None:
        raise BakeError(
            Problem(
                "this class isn't built yet, so there is nothing to compare with",
                field=f"class.{plan.name}",
                cure="run `fafo build`, or name an artifact of build/artifacts",
            )
        )


def _found(build: Path, old: str) -> str:
    """Return the one artifact in build/ whose hash begins with `old`."""
    cure = "name the beginning of a file in build/artifacts, four digits or more"
    names = sorted(path.stem for path in (build / "artifacts").glob("*.json"))
    if not _PREFIX.fullmatch(old):
        raise BakeError(Problem(f"\"{old}\" isn't the beginning of an artifact's hash", cure=cure))
    found = [made for made in names if made.startswith(old)]
    if len(found) > 1:
        which = ", ".join(made[: len(old) + 4] for made in found[:4])
        raise BakeError(
            Problem(f'"{old}" stands for {len(found)} artifacts: {which}', cure="write more of it")
        )
    if not found:
        raise BakeError(Problem(f'there is no artifact "{old}" in build/', cure=cure))
    return found[0]


def _tokenizer_json(build: Path, artifact: Artifact) -> bytes | None:
    path = store.tokenizer_path(build, artifact.tokenizer)
    return store.read_named(path, artifact.tokenizer) if path.exists() else None
