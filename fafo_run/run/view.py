"""The view: baked classes over declared sources, and every item that they stand for, in order, with
its identity.

The producer makes work of it; status, verify and export hold the results against it. No engine is involved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path

from attrs import evolve, frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.baked import Baked, BakedModel
from fafo_build.bake.sampling import for_engine, parameters, sampling_hash
from fafo_build.errors import DeclarationError, Problem
from fafo_build.project.declaration import Project, PromptClass, Sampling, Source
from fafo_build.project.values import did_you_mean
from fafo_run.identity import identity
from fafo_run.item import BrokenRow, Provenance, Row, Value
from fafo_run.results.summary import Group
from fafo_run.sources.view import See, open_source

Work = tuple[str, str, str]
"""Artifact, sampling hash and model fingerprint: with a row, all that an identity is made of."""


@frozen(slots=False)
class ClassView:
    """One class as it is baked now, and the sources whose rows are asked in its name."""

    declared: PromptClass
    artifact: Artifact
    model: BakedModel
    sampling: Sampling
    """What the engine is asked for; `json_schema` is the schema itself."""
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        """The class's name."""
        return self.declared.name

    @cached_property
    def sampling_hash(self) -> str:
        """64 hex digits."""
        return sampling_hash(self.sampling)

    @cached_property
    def model_fingerprint(self) -> str:
        """64 hex digits."""
        return self.artifact.model.digest

    @cached_property
    def work(self) -> Work:
        """What the class asks, and of whom."""
        return self.artifact.hash, self.sampling_hash, self.model_fingerprint

    @property
    def model_name(self) -> str:
        """The declared path, with `@revision` if there is one."""
        fingerprint = self.artifact.model
        return f"{fingerprint.name}@{fingerprint.revision}" if fingerprint.revision else fingerprint.name

    def sampling_values(self) -> Mapping[str, Value]:
        """Return the sampling parameters that reach the engine, for the provenance."""
        return parameters(self.sampling)


@frozen
class View:
    """The classes of a project over its sources, as far as they were asked for."""

    project: Project
    classes: tuple[ClassView, ...]
    """In the order in which their items come."""
    limit: int | None
    """The most items of each class; None: all."""
    owners: Mapping[tuple[Work, str], str]
    """Work and source to the class in whose name it is asked now, for all classes of the project. A result
    belongs to a class by its work, since the class may have been renamed, or have a twin.
    """

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source that some class here uses, in the order of the declaration."""
        used = {source.name for of in self.classes for source in of.sources}
        return tuple(source for name, source in self.project.sources.items() if name in used)

    def owner(self, of: Provenance | Group) -> str | None:
        """Return the class that stands for such work now; None when none does: it is superseded."""
        return self.owners.get(((of.artifact, of.sampling_hash, of.model_fingerprint), of.source))


@frozen
class ViewItem:
    """One unit of work that the declaration stands for."""

    identity: bytes
    of: ClassView
    row: Row | BrokenRow
    sample: int


def open_view(
    project: Project,
    baked: Baked,
    *,
    classes: Collection[str] = (),
    sources: Collection[str] = (),
    limit: int | None = None,
) -> View:
    """Return the view of these classes and sources; an empty filter takes all.

    Raises `DeclarationError` for a name that isn't declared, and for filters that leave nothing.
    """
    check_names("class", classes, project.classes)
    check_names("source", sources, project.sources)
    every = {name: _class_view(project, baked, name) for name in project.classes}
    owners: dict[tuple[Work, str], str] = {}
    chosen = []
    for name, found in every.items():
        feeds = [source for source in found.sources if not sources or source.name in sources]
        if feeds and (not classes or name in classes):
            # Two classes that ask the same of the same rows are one work, with one identity per row.
            own = tuple(source for source in feeds if (found.work, source.name) not in owners)
            owners.update(((found.work, source.name), name) for source in own)
            chosen.append(evolve(found, sources=own))
    if not chosen:
        raise DeclarationError.of(
            "no class uses these sources", cure="leave out --class or --source, or name others"
        )
    for name, found in every.items():
        for source in found.sources:
            owners.setdefault((found.work, source.name), name)
    return View(project=project, classes=tuple(chosen), limit=limit, owners=owners)


def check_names(kind: str, asked: Collection[str], declared: Mapping[str, object]) -> None:
    """Raise `DeclarationError` for every name that isn't declared."""
    problems = [
        Problem(
            f'no {kind} named "{name}" is declared',
            cure=did_you_mean(name, declared, what=f"{kind}es" if kind == "class" else f"{kind}s"),
        )
        for name in asked
        if name not in declared
    ]
    if problems:
        raise DeclarationError(problems)


def items(view: View) -> Iterator[ViewItem]:
    """Yield every item: class by class, so that items of one prefix follow each other.

    A row that stands twice in a source yields the same identity twice, but under a limit, which counts it
    once. A broken row yields one item per class, however many samples the class asks for: there is one reason
    to record.

    Raises `SourceError`.
    """
    for of in view.classes:
        found = (item for spec in of.sources for item in _items_of(of, spec, view.project.root))
        yield from found if view.limit is None else islice(once(found), view.limit)


def crossing_off(view: View, names: set[bytes]) -> See:
    """Return what takes the identities of a row's items out of `names`, until nothing is left in it.

    What is left when every row has passed is of no item of the view, limited or not.
    """
    asking: dict[str, list[ClassView]] = {}
    for of in view.classes:
        for source in of.sources:
            asking.setdefault(source.name, []).append(of)

    def see(row: Row | BrokenRow) -> None:
        if names:
            for of in asking[row.source]:
                names.difference_update(_names(of, row))

    return see


def once(found: Iterable[ViewItem]) -> Iterator[ViewItem]:
    """Leave repeated items out. Remembers every one, in 100 bytes each."""
    seen: set[bytes] = set()
    for item in found:
        if item.identity not in seen:
            seen.add(item.identity)
            yield item


def _items_of(of: ClassView, spec: Source, root: Path) -> Iterator[ViewItem]:
    for row in open_source(spec, root).rows():
        for sample, name in enumerate(_names(of, row)):
            yield ViewItem(name, of, row, sample)


def _names(of: ClassView, row: Row | BrokenRow) -> list[bytes]:
    samples = 1 if isinstance(row, BrokenRow) else of.sampling.samples
    return [identity(*of.work, row.source, row.key, row.content_hash, sample) for sample in range(samples)]


def _class_view(project: Project, baked: Baked, name: str) -> ClassView:
    declared = project.classes[name]
    return ClassView(
        declared=declared,
        artifact=baked.classes[name].artifact,
        model=baked.classes[name].model,
        sampling=for_engine(project, declared),
        sources=tuple(project.sources[source] for source in declared.sources),
    )
