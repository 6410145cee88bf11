"""`fafo items`: what the view holds, without an engine."""

from __future__ import annotations

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
    from fafo_run.run.view import items as view_items

    found = view_items(fitting_view(project_of(context), classes=classes, sources=sources, limit=limit))
    if count:
        print_data(sum(1 for _ in found))
        return
    for item in found:
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
