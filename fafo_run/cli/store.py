"""`fafo store`: the log's own tools."""

from __future__ import annotations

from pathlib import Path

import click

from fafo_build.cli.options import project_of, say
from fafo_run.cli.options import run_folder, run_option


@click.group()
def store() -> None:
    """The log's own tools."""


@store.command()
@run_option
@click.pass_context
def reindex(context: click.Context, run_name: str) -> None:
    """Delete a run's index and build it again from the segments."""
    from fafo_run.run.store import reindex as rebuild

    found = rebuild(run_folder(project_of(context), run_name))
    say(f"  indexed {found} records")


@store.command()
@click.argument("segment", type=click.Path(dir_okay=False, path_type=Path))
def dump(segment: Path) -> None:
    """Print what is inside SEGMENT (a .seg file), one JSON object per line."""
    import msgspec

    from fafo_run.log.dump import dump as entries

    for entry in entries(segment):
        click.echo(msgspec.json.encode(entry).decode())
