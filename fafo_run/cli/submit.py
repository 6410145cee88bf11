"""`fafo submit`: queue what has no result yet, and exit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option, say
from fafo_build.errors import ExitCode
from fafo_run.cli.options import (
    check_current,
    filter_options,
    fitting_view,
    run_folder,
    run_option,
    stale_option,
)

if TYPE_CHECKING:
    from fafo_run.run.intake import Taken

_LINE_EVERY = 10.0
"""Seconds between two lines of progress."""


@click.command(short_help="Queue what has no result yet, and exit; needs no engine.")
@stale_option
@filter_options
@run_option
@json_option
@quiet_option
@click.pass_context
def submit(
    context: click.Context,
    stale: bool,
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    limit: int | None,
    run_name: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Queue every item of the view that is neither done nor waiting, and exit; no engine is needed.

    Works beside a run or service, and beside other submits. What waits is done by `fafo run`. Interrupted,
    it keeps what was queued; the same command goes on from there.
    """
    from attrs import asdict

    from fafo_run.run.submit import submit as submit_view

    project = project_of(context)
    if not stale:
        check_current(project)
    view = fitting_view(project, classes=classes, sources=sources, limit=limit)
    told = time.monotonic()

    def progress(taken: Taken) -> None:
        nonlocal told
        if time.monotonic() - told >= _LINE_EVERY:
            told = time.monotonic()
            say(_text(taken), quiet=quiet)

    taken = submit_view(view, run_folder(project, run_name), progress)
    if as_json:
        print_json(asdict(taken))
    else:
        say(_text(taken), quiet=quiet)
        if taken.interrupted:
            say("  interrupted; what was queued stays, and the same command goes on from here", quiet=quiet)
    if taken.interrupted:
        context.exit(ExitCode.INTERRUPTED)


def _text(taken: Taken) -> str:
    parts = [f"{taken.queued} queued"]
    parts += [f"{taken.unsendable} of them can't be sent; the run records why"] if taken.unsendable else []
    before = (("done", taken.done), ("failed", taken.failed), ("waiting", taken.waiting))
    return "  " + " · ".join([*parts, *(f"{count} {what} before" for what, count in before)])
