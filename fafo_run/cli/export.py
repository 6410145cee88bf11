"""`fafo export`: the results, where users want them."""

from __future__ import annotations

from pathlib import Path

import click

from fafo_build.cli.options import project_of, quiet_option, say
from fafo_run.cli.options import filter_options, run_folder, run_option, view_of
from fafo_run.watch.words import counted


@click.command(short_help="Write the results to a file, one row per item.")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--failures", is_flag=True, help="Also the items that failed, with their error.")
@filter_options
@run_option
@quiet_option
@click.pass_context
def export(
    context: click.Context,
    out: Path,
    failures: bool,
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    limit: int | None,
    run_name: str,
    quiet: bool,
) -> None:
    """Write the results to OUT (.jsonl or .parquet): one row per item of the view, in the view's order."""
    from fafo_run.export.export import export as write
    from fafo_run.run.store import RunReader

    project = project_of(context)
    view = view_of(project, classes=classes, sources=sources, limit=limit)
    with RunReader.open(run_folder(project, run_name)) as reader:
        done = write(view, reader, out, failures=failures)
    parts = [counted(done.written, "row")]
    if done.waiting:
        parts.append(
            f"{counted(done.waiting, 'item')} {'has' if done.waiting == 1 else 'have'} no result yet"
        )
    if done.failed and not failures:
        parts.append(f"{done.failed} failed, left out (--failures)")
    say(f"  {out}: {' · '.join(parts)}", quiet=quiet)
    if done.damaged:
        say("  results are damaged: `fafo store check` says what helps", quiet=quiet)
