"""`fafo run`: generate what has no result yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option, say
from fafo_build.visible import one_line
from fafo_run.cli.options import (
    check_current,
    filter_options,
    fitting_view,
    run_folder,
    run_option,
    stale_option,
)

if TYPE_CHECKING:
    from fafo_run.run.outcome import Outcome


@click.command(short_help="Generate what has no result yet.")
@stale_option
@click.option(
    "--engine", metavar="ENGINE", help="An engine of fafo.toml, in place of the one each class names."
)
@click.option(
    "--service", is_flag=True, help="Stay when nothing is left: wait for new rows and for what others submit."
)
@filter_options
@run_option
@json_option
@click.option("--log-json", is_flag=True, help="Progress as JSON lines on stderr instead of a bar.")
@quiet_option
@click.pass_context
def run(
    context: click.Context,
    stale: bool,
    engine: str | None,
    service: bool,
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    limit: int | None,
    run_name: str,
    as_json: bool,
    log_json: bool,
    quiet: bool,
) -> None:
    """Generate: every item of the view that has no result yet is sent to the engine, and its answer recorded.

    Starting again does only what is left. Ctrl-C once finishes what is under way and stops; twice
    stops now. Both leave a safe state. SIGTERM finishes what is under way within run.stop_within.
    """
    from fafo_run.run.plan import plan_run
    from fafo_run.run.supervisor import Supervisor
    from fafo_run.watch.progress import RunView

    if service and limit is not None:
        raise click.UsageError("a service has no end, so it has no --limit: leave out one of the two")
    project = project_of(context)
    if not stale:
        check_current(project)
    asked = fitting_view(project, classes=classes, sources=sources, limit=limit)
    plan = plan_run(asked, engine)
    with RunView(plan, as_json=log_json, quiet=quiet or (as_json and not log_json)) as view:
        outcome = Supervisor(plan, run_folder(project, run_name), view, service=service).run()
        view.ended(outcome)
    if as_json:
        print_json(outcome.as_json())
    elif not log_json:
        _print(outcome, quiet=quiet)
    if outcome.error is not None:
        raise outcome.error
    context.exit(outcome.exit_code)


def _print(outcome: Outcome, *, quiet: bool) -> None:
    from fafo_run.watch.progress import cache_share
    from fafo_run.watch.words import by_count

    snapshot = outcome.snapshot
    done_before = snapshot.before - snapshot.failed_before
    parts = [f"{snapshot.completed} done", f"{snapshot.failed} failed"]
    ends = by_count(snapshot.finish_reasons)
    parts += [f"{count} ended by {name}" for name, count in ends if name != "stop"]
    parts += [f"{snapshot.empty} empty"] if snapshot.empty else []
    parts += [f"{done_before} done before"] if done_before else []
    parts += [f"{snapshot.failed_before} failed before"] if snapshot.failed_before else []
    parts += [f"{snapshot.left} left"] if snapshot.left else []
    if snapshot.completed:
        parts.append(f"{snapshot.completed / max(snapshot.elapsed, 1e-9):.1f}/s")
        parts.append(cache_share(snapshot))
    say("  " + " · ".join(parts), quiet=quiet)
    for code, found in snapshot.failures.items():
        say(one_line(f"  {code}: {found.count}, the first: {found.example}"), quiet=quiet)
    if snapshot.failed_before:
        say(
            "  what failed before stays so: `fafo failures` says why, `fafo retry` puts it back",
            quiet=quiet,
        )
    if outcome.status == "finished" and not snapshot.left and not snapshot.completed and not snapshot.failed:
        say("  nothing to do: every item has an outcome", quiet=quiet)
    if outcome.status == "stopped":
        say("  stopped; what waits is done by the next run or service", quiet=quiet)
    if outcome.status == "interrupted":
        say("  interrupted; the state is safe, and the same command goes on from here", quiet=quiet)
