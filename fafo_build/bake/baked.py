"""What a run reads back of `fafo build`: the lock, artifacts and tokenizers, checked against their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.artifact import Artifact
from fafo_build.bake.lock import Lock, LockedClass, LockedModel, read_lock
from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project

if TYPE_CHECKING:
    from fafo_build.tokens.encoder import TextEncoder


@frozen(slots=False)
class BakedModel:
    """What a run needs to know of a model besides its weights."""

    locked: LockedModel
    tokenizer_json: bytes

    @cached_property
    def encoder(self) -> TextEncoder:
        """The tokenizer, for all classes of the model: reading it takes a good part of a second."""
        from fafo_build.tokens.encoder import TextEncoder

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
