"""`fafo verify`: the cache works, and nothing is lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option
from fafo_run.cli.options import run_folder, run_option, view_of

if TYPE_CHECKING:
    from fafo_run.verify.report import Report


@click.command()
@click.option(
    "--min-hit-rate",
    type=click.FloatRange(0, 1),
    metavar="X",
    help="Of the ceiling, 0 to 1; in place of verify.min_hit_rate.",
)
@run_option
@json_option
@quiet_option
@click.pass_context
def verify(
    context: click.Context, min_hit_rate: float | None, run_name: str, as_json: bool, quiet: bool
) -> None:
    """Prove that the prefixes came from the cache, and that nothing is lost or doubled.

    Exit code 0: ok, 4: below, 5: can't tell.
    """
    from fafo_run.run.store import RunReader
    from fafo_run.verify.check import verify as check

    project = project_of(context)
    view = view_of(project)
    with RunReader.open(run_folder(project, run_name)) as reader:
        report = check(view, reader, project.verify.min_hit_rate if min_hit_rate is None else min_hit_rate)
    if as_json:
        print_json(report.as_json())
    elif not quiet:
        click.echo(_text(report))
    context.exit(report.verdict.exit_code)


def _text(report: Report) -> str:
    hits, complete = report.hits, report.completeness
    parts = [
        "no hit rate"
        if hits.hit_rate is None or hits.ceiling is None
        else f"hit rate {hits.hit_rate:.3f} of {hits.ceiling:.3f}",
        f"{complete.completed} of {complete.total} items",
    ]
    parts += [f"{complete.failed} failed"] if complete.failed else []
    parts += [f"{complete.waiting} waiting"] if complete.waiting else []
    parts += [f"{complete.superseded} superseded"] if complete.superseded else []
    parts.append("artifacts stale" if report.stale else "artifacts current")
    sound = not (complete.doubled or complete.lost or complete.undecodable)
    parts.append("records sound" if sound else "records unsound")
    lines = [f"  {report.verdict.value}    {' · '.join(parts)}"]
    lines += [f"  {found.cause.value}: {found.detail}" for found in report.findings]
    return "\n".join(lines)
