"""`fafo status`: where a run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of
from fafo_run.cli.options import run_folder, run_option, view_of

if TYPE_CHECKING:
    from fafo_run.watch.status import Status


@click.command()
@run_option
@json_option
@click.pass_context
def status(context: click.Context, run_name: str, as_json: bool) -> None:
    """Show where a run stands, also while it runs. Takes no lock."""
    from fafo_run.watch.status import status_of

    project = project_of(context)
    found = status_of(view_of(project), run_folder(project, run_name))
    if as_json:
        print_json(found.as_json())
    else:
        click.echo(_text(found))


def _text(found: Status) -> str:
    from fafo_run.watch.progress import duration, percent

    outcomes = found.completed + found.failed
    lines = [f"  run {found.run}: {found.status} · {_share(outcomes, found.total)}"]
    for name, count in found.by_class.items():
        failed = f" · {count.failed} failed" if count.failed else ""
        lines.append(f"  {name}: {count.completed} done{failed}")
    ends = [f"{count} by {name}" for name, count in found.finish_reasons.items()]
    ends += [f"{found.empty} of them empty"] if found.empty else []
    lines += [f"  ended: {', '.join(ends)}"] if ends else []
    lines.append(f"  queue: {found.queued} waiting, {found.in_flight} in flight")
    tokens = found.tokens
    if tokens.prompt:
        lines.append(
            f"  tokens: {tokens.prompt} prompt, {percent(tokens.cached / tokens.prompt)} cached "
            f"(ceiling {percent(tokens.ceiling / tokens.prompt)}), {tokens.output} output"
        )
    if found.rate is not None:
        eta = "" if found.eta is None else f" · about {duration(found.eta)} left"
        lines.append(f"  rate: {found.rate:.1f}/s{eta}")
    if found.superseded:
        lines.append(f"  superseded: {found.superseded} records of older prompts, parameters or models")
    lines += [f"  server: {url}" for url in found.servers]
    lines.append(
        f"  store: {found.store.path} · {found.store.segments} segments · {found.store.bytes:,} bytes"
    )
    lines += [f"  override: {override}" for override in found.store.overrides]
    return "\n".join(lines)


def _share(outcomes: int, total: int | None) -> str:
    if total is None:
        return f"{outcomes} of ? items"
    if outcomes > total:
        return f"{outcomes} items, {total} in the view of the last run: rows have changed or are gone"
    return f"{outcomes} of {total} items"
