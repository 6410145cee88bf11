"""`fafo failures`: what failed and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, tell
from fafo_build.visible import one_line
from fafo_run.cli.options import failure_options, run_folder, run_option, view_of, which_of
from fafo_run.watch.rows import RowNow
from fafo_run.watch.words import bounded, times

if TYPE_CHECKING:
    from fafo_run.watch.failures import Example, Failures, Group

_LONGEST = 1_000
"""Characters of a message that people are shown."""


@click.command()
@failure_options
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", default=3, show_default=True,
    help="Examples of each code and class.",
)  # fmt: skip
@run_option
@json_option
@click.pass_context
def failures(
    context: click.Context,
    codes: tuple[str, ...],
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    limit: int,
    run_name: str,
    as_json: bool,
) -> None:
    """Show what failed and why: by code and class, with examples. Reads, takes no lock."""
    from fafo_run.watch.failures import failures_of

    project = project_of(context)
    which = which_of(project, codes, classes, sources)
    found = failures_of(view_of(project), run_folder(project, run_name), which, limit)
    if as_json:
        print_json(found.as_json())
    else:
        tell("\n".join(_text(found)))


def _text(found: Failures) -> Iterator[str]:
    if not found.groups:
        yield "  nothing failed"
    for group in found.groups:
        yield f"  {group.code} · {group.class_name}: {_counted(group)}"
        for example in group.examples:
            yield f"    {_example(example)}"
    if found.superseded:
        yield "  `fafo store compact --superseded` drops what isn't declared any more"
    if found.gone:
        yield (
            "  `fafo store compact --failed` drops failures of rows that are gone or have changed, and all "
            "others: the next run does the items of those again"
        )


def _counted(group: Group) -> str:
    parts = [f"{group.count} failed"]
    parts += [f"{group.waiting} of them wait for a retry"] if group.waiting else []
    parts += [f"{group.superseded} of them superseded: not declared any more"] if group.superseded else []
    gone = f"{group.gone} of them superseded: the row is gone or has changed"
    parts += [gone] if group.gone else []
    return ", ".join(parts)


def _row(example: Example) -> str:
    match example.row:
        case None:
            return "its source can't be read now"
        case RowNow.SAME:
            return str(example.where)
        case RowNow.CHANGED:
            return f"the row has changed since: {example.where}"
        case RowNow.GONE:
            return "the source has no row with this key now"


def _example(example: Example) -> str:
    record = example.failed.record
    message = example.failed.failure.message
    where = f" ({_row(example)})"
    if example.row is RowNow.SAME and message.startswith(f"{example.where}: "):
        where = ""  # The message says it.
    tries = f", {record.attempt} attempts" if record.attempt > 1 else ""
    tries += f", put back {times(example.retries)}" if example.retries else ""
    name = f"{record.identity.hex()[:8]} · {record.provenance.source} · {record.key}{where}{tries}"
    return one_line(f"{name}: {bounded(message, _LONGEST)}")
