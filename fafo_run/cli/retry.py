"""`fafo retry`: put what failed back into the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option, say
from fafo_build.errors import ExitCode
from fafo_run.cli.options import (
    check_current,
    failure_options,
    run_folder,
    run_option,
    stale_option,
    view_of,
    which_of,
)

if TYPE_CHECKING:
    from fafo_run.run.retry import Retried


@click.command(short_help="Put items that failed back into the queue.")
@failure_options
@click.option("--dry-run", is_flag=True, help="Only say what would be put back.")
@stale_option
@run_option
@json_option
@quiet_option
@click.pass_context
def retry(
    context: click.Context,
    codes: tuple[str, ...],
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    dry_run: bool,
    stale: bool,
    run_name: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Put items that failed back into the queue; the next run, or one that works, does them once more.

    Their failures stay, as history. Mend the cause first: what fails for the same reason fails again.
    """
    from fafo_run.run.retry import retry as put_back

    project = project_of(context)
    if not stale:
        check_current(project)
    which = which_of(project, codes, classes, sources)
    told = put_back(view_of(project), run_folder(project, run_name), which, dry_run=dry_run)
    if as_json:
        print_json(told.as_json() | {"dry_run": dry_run})
    else:
        for line in _text(told, "would be put back" if dry_run else "put back"):
            say(line, quiet=quiet)
    if told.interrupted:
        context.exit(ExitCode.INTERRUPTED)


def _text(told: Retried, done: str) -> Iterator[str]:
    codes = ", ".join(f"{count} {code}" for code, count in told.put_back.items())
    yield f"  {told.put_back.total()} {done}{f': {codes}' if codes else ''}"
    if told.waiting:
        yield f"  {told.waiting} not put back: waiting already, since an earlier retry"
    if told.superseded:
        yield f"  {told.superseded} not put back: the prompt, parameters or model aren't declared any more"
    if told.gone:
        yield f"  {told.gone} not put back: the row is gone, or has changed and is new work for any run"
    if told.interrupted:
        yield "  interrupted; what was put back stays so, and the same command goes on from here"
