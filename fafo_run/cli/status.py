"""`fafo status`: where a run stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, tell
from fafo_run.cli.options import run_folder, run_option, view_of
from fafo_run.watch.words import by_count, counted

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
        tell(_text(found))


def _text(found: Status) -> str:
    from fafo_run.watch.progress import duration, percent

    outcomes = found.completed + found.failed
    state = "running, a service" if found.service else found.status
    lines = [f"  run {found.run}: {state} · {_share(outcomes, found.total)}"]
    lines += [f"  waits: {found.notice}"] if found.notice else []
    for name, count in found.by_class.items():
        failed = f" · {count.failed} failed" if count.failed else ""
        lines.append(f"  {name}: {count.completed} done{failed}")
    if found.failed:
        lines.append("  `fafo failures` says why, and how many are of rows that have changed or gone since")
    ends = [f"{count} by {name}" for name, count in by_count(found.finish_reasons)]
    ends += [f"{found.empty} of them empty"] if found.empty else []
    lines += [f"  ended: {', '.join(ends)}"] if ends else []
    lines.append(f"  queue: {found.queued} waiting{_by_whom(found)}")
    tokens = found.tokens
    if tokens.prompt:
        lines.append(
            f"  tokens: {tokens.prompt} prompt, {percent(tokens.cached / tokens.prompt)} cached "
            f"(ceiling {percent(tokens.ceiling / tokens.prompt)}), {tokens.output} output"
        )
    if found.rate is not None:
        eta = f" · about {duration(found.eta)} left" if found.eta else ""
        lines.append(f"  rate: {found.rate:.1f}/s{eta}")
    if found.superseded:
        of = counted(found.superseded, "record")
        lines.append(f"  superseded: {of} of older prompts, parameters or models")
    if found.replaced:
        lines.append(f"  replaced: {counted(found.replaced, 'record')} by a later one of the same item")
    away = found.away
    lines += [f"  server: {url}{f' · away: {away[url]}' if url in away else ''}" for url in found.servers]
    size = f"{counted(found.store.segments, 'segment')} · {found.store.bytes:,} bytes"
    lines.append(f"  store: {found.store.path} · {size}")
    lines += [f"  override: {override}" for override in found.store.overrides]
    return "\n".join(lines)


def _by_whom(found: Status) -> str:
    if found.status == "running":
        return f", {found.in_flight} of them at the engine"
    return ", for the next `fafo run`" if found.queued else ""


def _share(outcomes: int, total: int | None) -> str:
    if total is None:
        return f"{outcomes} items so far; a run counts them all when it begins"
    if outcomes > total:
        return f"{outcomes} items, {total} in the view of the last run: rows have changed or are gone"
    return f"{outcomes} of {total} items"
