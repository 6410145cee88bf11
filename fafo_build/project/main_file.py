"""`fafo.toml`: the project's models, engines, sources and settings. Knows nothing of the classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from attrs import frozen

from fafo_build.project.checks import NAME, NAME_RULE
from fafo_build.project.declaration import Engine, Model, ProjectTable, Run, Source, Verify
from fafo_build.project.document import Document
from fafo_build.project.overrides import apply
from fafo_build.project.report import Report
from fafo_build.project.structure import Complaint, given, meant_table, structure, unknown_table
from fafo_build.project.values import Path, describe

Noun = TypeVar("Noun")

TABLES: Mapping[str, type] = {
    "project": ProjectTable,
    "model": Model,
    "models": Model,
    "engine": Engine,
    "engines": Engine,
    "source": Source,
    "run": Run,
    "verify": Verify,
}
"""The tables of `fafo.toml`, and what each holds: one, or several by name, or for `source` a list."""


@frozen
class Names:
    """What classes may refer to: the names as they are written, whatever is wrong below them.

    An empty one means that the names can't be known, as where a table's head is misspelt.
    """

    models: tuple[str, ...]
    engines: tuple[str, ...]
    sources: tuple[str, ...]


@frozen
class MainFile:
    """What could be made of `fafo.toml`; all of it, when the report has no problem."""

    project: ProjectTable | None
    models: Mapping[str, Model]
    engines: Mapping[str, Engine]
    sources: Mapping[str, Source]
    run: Run
    verify: Verify
    names: Names


def read_main_file(document: Document, env: Mapping[str, str], report: Report) -> MainFile:
    """Return what `fafo.toml` declares, with the overrides of the environment; problems go to the report."""
    overridden = apply(document.data, env)
    report.problems.extend(overridden.problems)
    complaints: list[Complaint] = []
    table = overridden.table

    misspelt = _misspelt(table)

    def one(key: str, noun: type[Noun]) -> Noun | None:
        made, wrong = structure(table.get(key, {}), noun, (key,))
        complaints.extend(() if key in misspelt and key not in table else wrong)
        return made

    complaints.extend(_unknown_tables(table))
    project = one("project", ProjectTable)
    models = _structured(_named(table, "model", complaints), Model, complaints)
    if "model" not in table and not table.get("models") and not misspelt & {"model", "models"}:
        complaints.append(Complaint((), "there is no [model]", 'add [model] with path = "..."', "table"))
    engine_tables = _named(table, "engine", complaints)
    if "engine" not in table and not table.get("engines"):
        engine_tables["default"] = (("engine",), {})
    engines = _structured(engine_tables, Engine, complaints)
    sources = _sources(table, complaints, misspelt)
    run, verify = one("run", Run), one("verify", Verify)
    report.add(document, complaints, origin=overridden.origin)
    written = table.get("source")
    whole = isinstance(written, list) and len(sources) == len(written) and "source" not in misspelt
    # Below a misspelt head or a wrong name stands what classes may rightly refer to: better no check then.
    names = Names(
        tuple(models) if not misspelt & {"model", "models"} else (),
        tuple(engines) if not misspelt & {"engine", "engines"} else (),
        tuple(sources) if whole else (),
    )
    return MainFile(
        project=project,
        models=_made(models),
        engines=_made(engines),
        sources=_made(sources),
        run=run or Run(),
        verify=verify or Verify(),
        names=names,
    )


def _unknown_tables(table: Mapping[str, Any]) -> Iterator[Complaint]:
    for key in table:
        if key not in TABLES:
            yield Complaint((key,), "there is no such key", unknown_table(key, tuple(TABLES)), "key")


def _misspelt(table: Mapping[str, Any]) -> set[str]:
    """Return the tables that are there under a wrong name: that they are missing too is no news."""
    meant = {meant_table(key, tuple(TABLES)) for key in table if key not in TABLES}
    return {key for key in meant if key is not None}


def _made(found: Mapping[str, Noun | None]) -> dict[str, Noun]:
    return {name: noun for name, noun in found.items() if noun is not None}


def _named(table: Mapping[str, Any], single: str, complaints: list[Complaint]) -> dict[str, tuple[Path, Any]]:
    """Return the tables of `[single]` or `[singles.NAME]` by name, each with its path."""
    plural = single + "s"
    found: dict[str, tuple[Path, Any]] = {}
    if single in table:
        found["default"] = ((single,), table[single])
    several = table.get(plural)
    if several is None:
        return found
    if found:
        complaints.append(
            Complaint(
                (plural,),
                f"the project has [{single}] already",
                f"write [{single}] for one, or [{plural}.NAME] for each of several",
                "key",
            )
        )
    if not isinstance(several, Mapping):
        message = f"expected tables with names, got {describe(several)}"
        complaints.append(Complaint((plural,), message, f"write [{plural}.NAME]", "value"))
        return found
    for name, inner in several.items():
        if not NAME.fullmatch(name):
            message = f"expected a name, got {describe(name)}"
            complaints.append(Complaint((plural, name), message, f"a name has {NAME_RULE}", "key"))
        elif not isinstance(inner, Mapping):
            message = f"expected a table, got {describe(inner)}"
            cure = f"write [{plural}.NAME] above it, or [{single}] if there is one only"
            complaints.append(Complaint((plural, name), message, cure, "value"))
        else:
            found.setdefault(name, ((plural, name), inner))
    return found


def _structured(
    tables: Mapping[str, tuple[Path, Any]], noun: type[Noun], complaints: list[Complaint]
) -> dict[str, Noun | None]:
    found: dict[str, Noun | None] = {}
    for name, (path, inner) in tables.items():
        found[name], wrong = structure(given(inner, name=name), noun, path)
        complaints.extend(wrong)
    return found


def _sources(
    table: Mapping[str, Any], complaints: list[Complaint], misspelt: set[str]
) -> dict[str, Source | None]:
    written = table.get("source", [])
    found: dict[str, Source | None] = {}
    if not isinstance(written, list):
        cure = "write its head with double brackets: [[source]], once for every source"
        message = f"expected a list of tables, got {describe(written)}"
        complaints.append(Complaint(("source",), message, cure, "key"))
        return found
    if not written and "source" not in misspelt:
        cure = "add a [[source]] with name, type and key"
        complaints.append(Complaint((), "there is no [[source]]", cure, "table"))
    first: dict[str, int] = {}
    for index, inner in enumerate(written):
        source, wrong = structure(inner, Source, ("source", index))
        complaints.extend(wrong)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            continue
        if name in first:
            message = f"source {first[name] + 1} of this file is called {describe(name)} too"
            complaints.append(
                Complaint(("source", index, "name"), message, "give one of them another name", "value")
            )
        first.setdefault(name, index)
        found.setdefault(name, source)
    return found
