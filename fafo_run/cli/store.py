"""`fafo store`: the log's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_data, print_json, project_of, say, tell
from fafo_run.cli.options import run_folder, run_option, view_of
from fafo_run.watch.words import counted

if TYPE_CHECKING:
    from fafo_run.log.actions import Action
    from fafo_run.run.check import Checked


@click.group()
def store() -> None:
    """Look into, mend and shrink the store of a run."""


@store.command(short_help="Look at every entry and say what is wrong; change nothing.")
@run_option
@json_option
@click.pass_context
def check(context: click.Context, run_name: str, as_json: bool) -> None:
    """Look at every entry of a run's logs, its index and its quarantine; change nothing, take no lock.

    Works beside a run. Exit code 0: sound, 6: damaged.
    """
    from fafo_build.errors import ExitCode
    from fafo_run.run.check import check as look

    found = look(run_folder(project_of(context), run_name))
    if as_json:
        print_json(found.as_json())
    else:
        tell(_report(found))
    context.exit(ExitCode.DONE if found.sound else ExitCode.STORE_DAMAGED)


@store.command(short_help="Do what the next run would do first, and say each thing.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; takes no lock, writes nothing.")
@run_option
@json_option
@click.pass_context
def repair(context: click.Context, run_name: str, dry_run: bool, as_json: bool) -> None:
    """Do what the next run would do first, with every entry looked at, and say each thing.

    Refused while a run works.
    """
    from fafo_run.run.repair import plan
    from fafo_run.run.repair import repair as mend

    project = project_of(context)
    folder = run_folder(project, run_name)
    if dry_run:
        planned = plan(folder)
        if as_json:
            print_json({"dry_run": True, "actions": [action.as_json() for action in planned]})
        for action in () if as_json else planned:
            tell(f"  {action.where}: {action.found}; would be {action.done}")
        if not planned and not as_json:
            tell("  nothing to do")
        return

    def found(action: Action, done: bool) -> None:
        say(f"  {action.where}: {action.done if done else action.found}")

    done = mend(folder, project.run, found)
    if as_json:
        actions = [action.as_json() for action in done.actions]
        print_json({"dry_run": False, "actions": actions, "left": done.left.as_json()})
    else:
        tell(_report(done.left))


@store.command(short_help="Build the index anew from the segments.")
@run_option
@click.pass_context
def reindex(context: click.Context, run_name: str) -> None:
    """Delete a run's index and build it again from the segments."""
    from fafo_run.run.store import reindex as rebuild

    project = project_of(context)
    found = rebuild(run_folder(project, run_name), project.run)
    say(f"  indexed {counted(found, 'record')}")


@store.command(short_help="Rewrite the results without what a later record supersedes.")
@click.option("--superseded", is_flag=True, help="Also records of work that no class stands for now.")
@click.option("--failed", is_flag=True, help="Also failures that count: their items will be done again.")
@click.option("--damaged", is_flag=True, help="Also damaged bytes, once they are kept in quarantine/.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@run_option
@json_option
@click.pass_context
def compact(
    context: click.Context,
    superseded: bool,
    failed: bool,
    damaged: bool,
    dry_run: bool,
    run_name: str,
    as_json: bool,
) -> None:
    """Rewrite a run's results without failures whose items have a later record."""
    from attrs import asdict

    from fafo_run.run.compaction import compact as rewrite

    project = project_of(context)
    view = view_of(project) if superseded else None
    folder = run_folder(project, run_name)
    done = rewrite(folder, project.run, view, failed=failed, damaged=damaged, dry_run=dry_run)
    if as_json:
        print_json(asdict(done))
        return
    for name in done.damaged:
        say(f"  {name}: damaged, left as it is; --damaged writes it anew without the damage")
    kinds = (("superseded", done.superseded), ("failed", done.failed), ("obsolete", done.obsolete))
    parts = [f"{count} {name}" for name, count in kinds if count]
    parts += [f"the damage of {counted(done.mended, 'segment')}"] if done.mended else []
    verb = "would go" if dry_run else "went"
    sizes = f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after"
    say(f"  {' · '.join(parts) or 'nothing'} {verb} · {sizes}")


@store.command(short_help="Print what is inside a segment.")
@click.argument("segment", type=click.Path(dir_okay=False, path_type=Path))
def dump(segment: Path) -> None:
    """Print what is inside SEGMENT (a .seg file), one JSON object per line."""
    import msgspec

    from fafo_run.log.dump import dump as entries

    for entry in entries(segment):
        print_data(msgspec.json.encode(entry).decode())


def _report(found: Checked) -> str:
    parts = [
        counted(found.segments, "segment"),
        f"{found.entries} {'entry' if found.entries == 1 else 'entries'}",
        counted(found.outputs, "output"),
        counted(found.failures, "failure"),
        f"{found.waiting} waiting",
    ]
    parts += [f"{len(found.quarantine)} in quarantine/"] if found.quarantine else []
    lines = [f"  {'sound' if found.sound else 'damaged'}    {' · '.join(parts)}"]
    lines += [f"  {of.why.level.value}: {of.where}: {of.found}" for of in found.findings]
    lines += [f"  quarantine/{of.name} ({counted(of.size, 'byte')}): {of.reason}" for of in found.quarantine]
    lines += [f"  cure: {line}" for line in found.cures]
    return "\n".join(lines)
