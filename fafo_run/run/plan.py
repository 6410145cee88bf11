"""What a run will do, as a value: which view, with which engine. No log and no row is touched here."""

from __future__ import annotations

from attrs import evolve, frozen

from fafo_build.bake.lock import LockedModel
from fafo_build.bake.tree import prefix_trees
from fafo_build.errors import DeclarationError
from fafo_build.project.declaration import Engine, Model
from fafo_run.run.view import View, check_names


@frozen
class RunPlan:
    """A view and the one engine that answers it."""

    view: View
    """Its classes are in the order in which they are to be run."""
    engine: Engine
    model: Model

    @property
    def facts(self) -> LockedModel:
        """What the lock says of the one model of this run."""
        return self.view.classes[0].model.locked


def plan_run(view: View, engine: str | None = None) -> RunPlan:
    """Return the plan of a run over `view` with the engine of that name, or the one that its classes name.

    Raises `DeclarationError` for an engine that isn't declared, and for classes that need several
    engines or models.
    """
    project = view.project
    chosen = _only("engine", {engine} if engine else {of.declared.engine for of in view.classes})
    check_names("engine", (chosen,), project.engines)
    model = _only("model", {of.declared.model for of in view.classes})
    return RunPlan(_families_together(view), project.engines[chosen], project.models[model])


def _families_together(view: View) -> View:
    """Return the view with classes that share a beginning after each other.

    A cache that is too small for all prefixes then still holds the beginning when the next class warms up.
    Nothing else depends on the order.
    """
    classes = {of.name: of for of in view.classes}
    trees = prefix_trees({name: of.artifact for name, of in classes.items()})
    return evolve(view, classes=tuple(classes[name] for tree in trees for name in tree.order))


def _only(kind: str, names: set[str]) -> str:
    if len(names) == 1:
        return names.pop()
    choose = ", or choose one with --engine" if kind == "engine" else ""
    raise DeclarationError.of(
        f"these classes need {len(names)} {kind}s ({', '.join(sorted(names))}), and a run has one",
        cure=f"run them one after the other with --class{choose}",
    )
