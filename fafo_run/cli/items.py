"""`fafo items`: what the view holds, without an engine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from fafo_build.cli.options import print_data, project_of
from fafo_run.cli.options import filter_options, fitting_view


@click.command(short_help="Print the items that a run would take.")
@filter_options
@click.option("--count", is_flag=True, help="Print only how many there are.")
@click.pass_context
def items(
    context: click.Context, classes: tuple[str, ...], sources: tuple[str, ...], limit: int | None, count: bool
) -> None:
    """Print the items of the view that a run would take, one JSON object per line."""
    import msgspec

    from fafo_run.item import BrokenRow
    from fafo_run.run.totals import count as totals_of
    from fafo_run.run.totals import distinct

    view = fitting_view(project_of(context), classes=classes, sources=sources, limit=limit)
    with tempfile.TemporaryDirectory(prefix="fafo-items") as workdir:
        totals = totals_of(view, Path(workdir))
    if count:
        print_data(sum(totals.by_class.values()))
        return
    for item in distinct(view, totals):
        row = item.row
        told = {
            "identity": item.identity.hex(),
            "class": item.of.name,
            "source": row.source,
            "key": row.key,
            "sample": item.sample,
            "where": row.where,
        }
        told |= {"broken": row.message} if isinstance(row, BrokenRow) else {"row": dict(row.fields)}
        print_data(msgspec.json.encode(told).decode())
