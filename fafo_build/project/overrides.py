"""Environment variables that stand in for URLs, so that secrets stay out of a project's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from fafo_build.errors import Problem
from fafo_build.project.values import Path, listed, nearest

_OURS = ("FAFO_ENGINE", "FAFO_SOURCE")
"""How variables begin that can only be meant for a project's keys; other FAFO_ names are left alone."""
ENGINE_URLS = "FAFO_ENGINE_URLS"
_SOURCE_URL = re.compile(r"FAFO_SOURCE_(.+)_URL")


@frozen
class Overridden:
    """What `fafo.toml` says once the environment has had its word."""

    table: Mapping[str, Any]
    origin: Mapping[Path, str]
    """Which variable a value came from, by the path of the value."""
    problems: tuple[Problem, ...]
    """Of variables that fit nothing in this project."""


def active(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that override a project's keys, sorted; never their values.

    An empty one counts as not set: that is what a CI service makes of a secret that isn't there.
    """
    known = (name for name in env if name == ENGINE_URLS or _SOURCE_URL.fullmatch(name))
    return tuple(sorted(name for name in known if env[name].strip()))


def apply(table: Mapping[str, Any], env: Mapping[str, str]) -> Overridden:
    """Return the table of `fafo.toml` with the values of the environment in it.

    `FAFO_ENGINE_URLS` (separated by commas) is for the only engine of kind `sglang`, or of several for the
    one called `default`, and stands in for `launch`, too. `FAFO_SOURCE_NAME_URL` is for the source of that
    name, in capitals, with `_` for what isn't a letter or a digit. A variable that fits nothing, or one that
    only begins like these, is a problem, not a silence.
    """
    new = dict(table)
    origin: dict[Path, str] = {}
    problems: list[Problem] = []
    for variable in active(env):
        if variable == ENGINE_URLS:
            paths, candidates = _engines(table), 'an engine of kind "sglang"'
        else:
            paths, candidates = _sources(table, variable), "a source"
        if len(paths) != 1:
            problems.append(_misfit(variable, candidates, paths, table))
            continue
        value = env[variable]
        urls = [url.strip() for url in value.split(",") if url.strip()]
        key = "urls" if variable == ENGINE_URLS else "url"
        new = _with(new, (*paths[0], key), urls if key == "urls" else value)
        if key == "urls":
            new = _without_launch(new, paths[0])
        origin[(*paths[0], key)] = variable
    problems += (
        Problem("there is no such environment variable", field=variable, cure=_meant(variable, table))
        for variable in sorted(set(env) - set(active(env)))
        if variable.startswith(_OURS) and env[variable].strip()
    )
    return Overridden(new, origin, tuple(problems))


def _misfit(variable: str, candidates: str, paths: list[Path], table: Mapping[str, Any]) -> Problem:
    if paths:
        names = listed(".".join(map(str, path)) for path in paths)
        return Problem(
            f"several fit this environment variable: {names}", field=variable, cure="give them other names"
        )
    return Problem(
        f"the environment variable is set, and the project doesn't have {candidates} that it fits",
        field=variable,
        cure=_meant(variable, table),
    )


def _meant(variable: str, table: Mapping[str, Any]) -> str:
    """Return the cure for a variable that isn't known: the one that is meant, or none."""
    known = [ENGINE_URLS] if _engines(table) else []
    sources = table.get("source")
    known += (
        source_variable(str(source.get("name")))
        for source in (sources if isinstance(sources, list) else ())
        if isinstance(source, Mapping) and source.get("type") == "sql"
    )
    near = nearest(variable, (name for name in known if name[: len(_OURS[0])] == variable[: len(_OURS[0])]))
    if near is not None:
        return f"did you mean {near}? if not, unset it: `unset {variable}`"
    fits = f"what this project takes is {listed(known)}" if known else "this project takes none"
    return f"unset it (`unset {variable}`): {fits}"


def _engines(table: Mapping[str, Any]) -> list[Path]:
    single, several = table.get("engine"), table.get("engines")
    tables: dict[Path, Any] = {("engine",): single} if single is not None else {}
    if isinstance(several, Mapping):
        tables |= {("engines", name): engine for name, engine in several.items()}
    servers = [
        path
        for path, engine in tables.items()
        if isinstance(engine, Mapping) and engine.get("kind") == "sglang"
    ]
    named = [path for path in servers if path[-1] == "default"]
    return named if len(servers) > 1 and named else servers


def _sources(table: Mapping[str, Any], variable: str) -> list[Path]:
    sources = table.get("source")
    if not isinstance(sources, list):
        return []
    return [
        ("source", index)
        for index, source in enumerate(sources)
        if isinstance(source, Mapping) and variable == source_variable(str(source.get("name")))
    ]


def source_variable(name: str) -> str:
    """Return the environment variable that overrides the URL of the source called `name`."""
    return f"FAFO_SOURCE_{re.sub('[^A-Z0-9]', '_', name.upper())}_URL"


def _without_launch(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a copy of the table in which the engine at `path` starts no servers."""
    engine: Any = table
    for key in path:
        engine = engine[key]
    kept = {key: value for key, value in engine.items() if key != "launch"}
    changed: dict[str, Any] = _with(table, path, kept)
    return changed


def _with(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of nested tables and lists in which `path` holds `new`."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(value, list) and isinstance(first, int):
        return [_with(inner, rest, new) if at == first else inner for at, inner in enumerate(value)]
    return {**value, first: _with(value.get(first), rest, new)}
