"""Holds the prompts of each class against the first rows of its sources, before there are items.

A row that lacks what its prompt needs is a failure of that item alone. Where all of the first rows lack it,
the prompt is wrong, mostly by a misspelt column, and a run would only make millions of failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.errors import Problem, SourceError, TemplateError
from fafo_build.project.declaration import Project, PromptClass, Source
from fafo_build.project.values import nearest
from fafo_build.render.comments import without_comments
from fafo_build.render.message import MessageRenderer, RowError, location
from fafo_build.render.sources import Prompts, gather
from fafo_build.render.values import FieldError, RowFields, holds
from fafo_run.item import Row
from fafo_run.sources.rows import quoted
from fafo_run.sources.view import open_source

SAMPLE = 100
"""Rows of each source that are looked at. One that lacks nothing ends the look."""

_SHOWN = 20
"""Fields that a cure lists."""

Asked = tuple[PromptClass, Artifact, Sequence[Source]]
"""A class, what it is baked to, and the sources that it asks about."""

Unread = Callable[[Source, SourceError], None]
"""Is told of a source that can't be read."""


@frozen
class _Lack:
    """A field that a template needs and a row doesn't have."""

    name: str
    template: str
    line: int
    """1-based, of the template."""
    there: tuple[str, ...]
    """The fields that are there instead."""


def check_fit(project: Project, classes: Iterable[Asked], *, unread: Unread = lambda *_: None) -> None:
    """Raise `TemplateError` for every class whose prompts find what they need in none of the first rows.

    Of a source that can't be read, or not in moments, `unread` is told once: who reads it whole raises.
    """
    samples: dict[str, list[Row]] = {}
    problems: list[Problem] = []
    for declared, artifact, sources in classes:
        for source in sources:
            if source.name not in samples:
                samples[source.name] = _sample(source, project.root, unread)
            problems += _misfits(project, declared, artifact, samples[source.name])
    if problems:
        raise TemplateError(problems)


def _sample(source: Source, root: Path, unread: Unread) -> list[Row]:
    try:
        return [row for row in open_source(source, root).sample(SAMPLE) if isinstance(row, Row)]
    except SourceError as error:
        unread(source, error)
        return []


def _misfits(
    project: Project, declared: PromptClass, artifact: Artifact, rows: Sequence[Row]
) -> list[Problem]:
    """Return the problems of a class with the rows of one source: none, when one row lacks nothing."""
    renderer = MessageRenderer(artifact.templates, artifact.vars, artifact.examples)
    if not rows or not all(_lacks(renderer, artifact, row) for row in rows):
        return []
    prompts = _prompts(project, declared, artifact)
    if prompts is not None:
        # With their comments, so that the lines are those of the files.
        written = {name: prompts.templates[name].template.source for name in artifact.templates}
        renderer = MessageRenderer(written, artifact.vars, artifact.examples)
    counts: Counter[tuple[str, str, int]] = Counter()
    first: dict[tuple[str, str, int], _Lack] = {}
    for row in rows:
        lacks = {(lack.template, lack.name, lack.line): lack for lack in _lacks(renderer, artifact, row)}
        counts.update(lacks.keys())
        first = lacks | first
    return [
        _problem(declared, prompts, first[key], count, rows)
        for key, count in sorted(counts.items(), key=lambda each: (each[0][0], each[0][2]))
    ]


def _lacks(renderer: MessageRenderer, artifact: Artifact, row: Row) -> list[_Lack]:
    """Return what the prompts of a class don't find in a row. A null is there."""
    found: list[_Lack] = []
    for template in dict.fromkeys(hole.template for hole in artifact.holes):
        lack = _lack(renderer, template, row, {})
        # As if they were there, so that what the template needs besides shows too.
        given: dict[str, str] = {}
        while lack is not None and lack not in found:
            found.append(lack)
            given[lack.name] = ""
            lack = _lack(renderer, template, row, given)
    return found


def _lack(renderer: MessageRenderer, template: str, row: Row, given: Mapping[str, object]) -> _Lack | None:
    """Return the first field that a template doesn't find in a row with `given` columns besides."""
    try:
        renderer.render(template, {**given, **row.fields}, row.source, row.key)
    except RowError as error:
        why = error.__cause__
        if not isinstance(why, FieldError) or why.name in why.container:
            return None
        whole = isinstance(why.container, RowFields)
        if not whole and not holds(row.fields, why.container):
            return None
        there = row.fields if whole else why.container
        place = location(why) or (template, 1)
        return _Lack(str(why.name), *place, tuple(key for key in there if isinstance(key, str)))
    return None


def _prompts(project: Project, declared: PromptClass, artifact: Artifact) -> Prompts | None:
    """Return the prompts of a class as they are written; None where they aren't what was baked."""
    try:
        prompts = gather(project, declared)
    except TemplateError:
        return None
    now = {name: each.template.source for name, each in prompts.templates.items()}
    baked = artifact.templates.items()
    same = all(name in now and without_comments(now[name]) == source for name, source in baked)
    return prompts if same else None


def _problem(
    declared: PromptClass, prompts: Prompts | None, lack: _Lack, count: int, rows: Sequence[Row]
) -> Problem:
    total = len(rows)
    among = "the first row" if total == 1 else f"the first {total} rows"
    among = among if count == total else f"{count} of {among}"
    message = f'no field "{lack.name}" in {among} of {rows[0].source}'
    near = nearest(lack.name, lack.there)
    hint = f'did you mean "{near}"? ' if near else ""
    more = ", …" if len(lack.there) > _SHOWN else ""
    cure = (
        f"{hint}there are {quoted(lack.there[:_SHOWN])}{more}; of what only some rows have ask first: "
        "`is defined`, or `| default('')`"
    )
    if prompts is None:
        return Problem(message, file=declared.file, field=f"class.{declared.name}", cure=cure)
    template = prompts.templates[lack.template].template
    return evolve(template.problem(message, lack.line, lack.name, cure), field=f"class.{declared.name}")
