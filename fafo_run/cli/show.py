"""`fafo show`: one item whole."""

from __future__ import annotations

import click

from fafo_build.cli.options import json_option, print_json, project_of, tell
from fafo_run.cli.options import run_folder, run_option, view_of


@click.command()
@click.argument("name", metavar="IDENTITY-OR-KEY")
@click.option("--class", "class_name", metavar="CLASS", help="Only the item of this class.")
@run_option
@json_option
@click.pass_context
def show(context: click.Context, name: str, class_name: str | None, run_name: str, as_json: bool) -> None:
    """Print one item whole: row, prompt, output, cache, provenance.

    IDENTITY-OR-KEY is an identity (or at least 8 of its hex digits), or the key of a row; a key that
    several classes have items of shows them all.
    """
    from fafo_run.run.store import RunReader
    from fafo_run.watch.find import find
    from fafo_run.watch.show import render

    project = project_of(context)
    view = view_of(project, classes=(class_name,) if class_name else ())
    with RunReader.open(run_folder(project, run_name)) as reader:
        found = find(view, reader, name)
    if as_json:
        print_json([item.as_json() for item in found])
    else:
        tell(f"\n{'═' * 78}\n\n".join(render(item) for item in found))
