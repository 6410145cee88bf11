"""`fafo verify`: the cache works, and nothing is lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option, tell
from fafo_run.cli.options import DEFAULT_RUN, check_current, run_folder, run_option, view_of

if TYPE_CHECKING:
    from fafo_build.project.declaration import Project
    from fafo_run.run.plan import RunPlan

ITEMS = 16
"""Of each class, where `--items` isn't given."""


@click.command(short_help="Prove that the cache works and that nothing is lost or doubled.")
@click.option(
    "--min-hit-rate",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Of the ceiling, 0 to 1; in place of verify.min_hit_rate.",
)
@click.option(
    "--live", is_flag=True, help="Probe the running servers with two requests per class; needs no run."
)
@click.option(
    "--compare-no-cache",
    is_flag=True,
    help="Measure at the running servers what the cache saves: the same items with it and without.",
)
@click.option(
    "--items",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"With --compare-no-cache: items of each class; {ITEMS} if not given.",
)
@click.option(
    "--engine", metavar="ENGINE", help="An engine of fafo.toml, in place of the one each class names."
)
@click.option("--class", "classes", metavar="CLASS", multiple=True, help="Only this class; may repeat.")
@run_option
@json_option
@quiet_option
@click.pass_context
def verify(
    context: click.Context,
    min_hit_rate: float | None,
    live: bool,
    compare_no_cache: bool,
    items: int | None,
    engine: str | None,
    classes: tuple[str, ...],
    run_name: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Prove that the prefixes came from the cache, and that nothing is lost or doubled.

    Exit code 0: ok, 4: below, 5: can't tell. With --live it asks the servers instead of a run's results.
    """
    _check_options(live, compare_no_cache, items, engine, classes, min_hit_rate, run_name)
    project = project_of(context)
    least = project.verify.min_hit_rate if min_hit_rate is None else min_hit_rate
    if live:
        code, data, text = _live(_plan(project, engine, classes), least)
    elif compare_no_cache:
        code, data, text = _compare(_plan(project, engine, classes), items or ITEMS)
    else:
        code, data, text = _run(project, run_name, least)
    if as_json:
        print_json(data)
    elif not quiet:
        tell(text)
    context.exit(code)


_Said = tuple[int, dict[str, object], str]
"""Exit code, JSON, text."""


def _run(project: Project, run_name: str, least: float) -> _Said:
    from fafo_run.run.store import RunReader
    from fafo_run.verify.check import verify as check
    from fafo_run.verify.words import report_text

    view = view_of(project)
    with RunReader.open(run_folder(project, run_name)) as reader:
        report = check(view, reader, least)
    return report.verdict.exit_code, report.as_json(), report_text(report)


def _live(plan: RunPlan, least: float) -> _Said:
    import asyncio

    from fafo_run.verify.live import live
    from fafo_run.verify.words import live_text

    report = asyncio.run(live(plan, least))
    return report.verdict.exit_code, report.as_json(), live_text(report)


def _compare(plan: RunPlan, items: int) -> _Said:
    import asyncio

    from fafo_run.verify.saving import measure
    from fafo_run.verify.words import saving_text

    report = asyncio.run(measure(plan, items))
    return 0, report.as_json(), saving_text(report)


def _plan(project: Project, engine: str | None, classes: tuple[str, ...]) -> RunPlan:
    from fafo_run.run.plan import plan_run

    check_current(project)
    return plan_run(view_of(project, classes=classes), engine)


def _check_options(
    live: bool,
    compare: bool,
    items: int | None,
    engine: str | None,
    classes: tuple[str, ...],
    min_hit_rate: float | None,
    run_name: str,
) -> None:
    """Raise `click.UsageError` for options that say nothing together."""
    if live and compare:
        raise click.UsageError("--live and --compare-no-cache are two commands: give one of them")
    if items is not None and not compare:
        raise click.UsageError("--items is for --compare-no-cache")
    if (engine or classes) and not (live or compare):
        raise click.UsageError("--engine and --class are for --live and --compare-no-cache")
    if run_name != DEFAULT_RUN and (live or compare):
        raise click.UsageError("--live and --compare-no-cache look at no run: leave out --run")
    if min_hit_rate is not None and compare:
        raise click.UsageError("--compare-no-cache has no verdict: leave out --min-hit-rate")
