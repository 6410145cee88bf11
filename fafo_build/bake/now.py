"""One class as its sources give it now, whether or not build/ has it, beside the others as they were last
built. Reads; writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from fafo_build.bake import store
from fafo_build.bake.artifact import Artifact
from fafo_build.bake.compile import compile_class, ready
from fafo_build.bake.examples import read_examples
from fafo_build.bake.explanation import Subject
from fafo_build.bake.lock import Lock
from fafo_build.bake.plan import State, plan_build
from fafo_build.errors import DeclarationError
from fafo_build.project.declaration import Project
from fafo_build.project.values import did_you_mean
from fafo_build.render.sources import gather
from fafo_build.tokens.encoder import TextEncoder
from fafo_build.tokens.model_files import load_model


@frozen
class Present:
    """A class to look at."""

    subject: Subject
    state: State
    """`current`: as build/ has it; else it was baked in memory."""
    others: Mapping[str, Artifact]
    """The artifacts of other classes that build/ has, by class name."""
    missing: tuple[str, ...]
    """Other classes that build/ doesn't have."""


def class_now(project: Project, name: str) -> Present:
    """Return a class, baked in memory where build/ isn't what its sources give.

    Raises `DeclarationError` for a class that isn't declared, and what `build` raises for one class.
    """
    if name not in project.classes:
        raise DeclarationError.of(
            f'no class named "{name}" is declared', cure=did_you_mean(name, project.classes, what="classes")
        )
    declared = project.classes[name]
    # Mistakes in other classes are no concern of this one.
    plan = plan_build(evolve(project, classes={name: declared}))
    (own,) = plan.classes
    if own.state == "current" and own.before is not None:
        artifact = store.read_artifact(project.build_dir, own.before)
        path = store.tokenizer_path(project.build_dir, artifact.tokenizer)
        encoder = TextEncoder(store.read_named(path, artifact.tokenizer))
    else:
        model = project.models[declared.model]
        baker = ready(load_model(model, project.root), model.name, model.date)
        artifact, encoder = compile_class(project, declared, baker), baker.encoder
    others = _others(project, name, plan.lock)
    return Present(
        subject=Subject(
            declared=declared,
            prompts=gather(project, declared),
            examples=read_examples(project, declared),
            artifact=artifact,
            encoder=encoder,
        ),
        state=own.state,
        others=others,
        missing=tuple(other for other in project.classes if other != name and other not in others),
    )


def _others(project: Project, name: str, lock: Lock | None) -> dict[str, Artifact]:
    locked = lock.classes if lock else {}
    hashes = {other: locked[other].artifact for other in project.classes if other != name and other in locked}
    return {
        other: store.read_artifact(project.build_dir, found)
        for other, found in hashes.items()
        if store.is_whole(store.artifact_path(project.build_dir, found), found)
    }
