"""Options that the commands of a run share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fafo_build.project.declaration import Project
    from fafo_run.run.failures import Which
    from fafo_run.run.view import View

_Command = TypeVar("_Command", bound=Callable[..., Any])

DEFAULT_RUN = "main"


def run_option(command: _Command) -> _Command:
    """Add `--run NAME`."""
    return click.option(
        "--run", "run_name", metavar="NAME", default=DEFAULT_RUN, show_default=True, help="The run's name."
    )(command)


def filter_options(command: _Command) -> _Command:
    """Add `--class`, `--source` and `--limit`."""
    options = (
        click.option(
            "--class", "classes", metavar="CLASS", multiple=True, help="Only this class; may repeat."
        ),
        click.option(
            "--source", "sources", metavar="SOURCE", multiple=True, help="Only this source; may repeat."
        ),
        click.option(
            "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N items of each class."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def stale_option(command: _Command) -> _Command:
    """Add `--stale`."""
    return click.option(
        "--stale", is_flag=True, help="Use build/ as it is, even when prompts or classes have changed since."
    )(command)


def failure_options(command: _Command) -> _Command:
    """Add `--code`, `--class` and `--source`, which choose failures."""
    options = (
        click.option(
            "--code",
            "codes",
            metavar="CODE",
            multiple=True,
            help="Only this code, as in docs/errors.md; may repeat.",
        ),
        click.option(
            "--class", "classes", metavar="CLASS", multiple=True, help="Only of this class; may repeat."
        ),
        click.option(
            "--source", "sources", metavar="SOURCE", multiple=True, help="Only of this source; may repeat."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def which_of(
    project: Project, codes: tuple[str, ...], classes: tuple[str, ...], sources: tuple[str, ...]
) -> Which:
    """Return the choice of failures that `failure_options` made.

    Raises `click.UsageError` for a code that there isn't, `DeclarationError` for names that aren't declared.
    """
    from fafo_run.item import FailureCode
    from fafo_run.run.failures import Which
    from fafo_run.run.view import check_names

    known = [code.value for code in FailureCode]
    for code in codes:
        if code not in known:
            raise click.UsageError(f"there is no failure code {code!r}; there are {', '.join(known)}")
    check_names("source", sources, project.sources)
    return Which(codes, classes, sources)


def run_folder(project: Project, name: str) -> Path:
    """Return the folder of a run. Raises `click.UsageError` for a name that isn't a plain folder name."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(name.encode()) > 100:
        raise click.UsageError(f"--run takes a plain folder name, not {name!r}")
    return project.runs_dir / name


def check_current(project: Project) -> None:
    """Raise `BakeError` when build/ isn't what the sources give: a run would ask what nobody declares now."""
    from fafo_build.bake.plan import plan_build
    from fafo_build.errors import BakeError, Problem

    plan = plan_build(project)
    changed = [f"class {waiting.name}: {reason}" for waiting in plan.waiting for reason in waiting.reasons]
    if changed:
        raise BakeError(
            Problem(line, cure="run `fafo build`, or take build/ as it is with --stale") for line in changed
        )


def view_of(
    project: Project,
    *,
    classes: tuple[str, ...] = (),
    sources: tuple[str, ...] = (),
    limit: int | None = None,
) -> View:
    """Return the view of the baked classes. Raises `BakeError` when they aren't baked."""
    from fafo_build.bake.baked import load_baked
    from fafo_run.run.view import open_view

    return open_view(project, load_baked(project), classes=classes, sources=sources, limit=limit)


def fitting_view(
    project: Project,
    *,
    classes: tuple[str, ...] = (),
    sources: tuple[str, ...] = (),
    limit: int | None = None,
) -> View:
    """Return the view as `view_of` does, once its prompts were held against the first rows of its sources.

    Raises `TemplateError` when a prompt needs what none of them has.
    """
    from fafo_run.run.fit import check_fit

    view = view_of(project, classes=classes, sources=sources, limit=limit)
    asked = [(of.declared, of.artifact, of.sources) for of in view.classes]
    check_fit(project, asked)
    return view
