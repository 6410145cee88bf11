"""`fafo replay`: one item once more, and where its outputs part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fafo_build.cli.options import json_option, print_json, project_of, tell
from fafo_run.cli.options import run_folder, run_option, view_of

if TYPE_CHECKING:
    from fafo_build.project.declaration import Project
    from fafo_run.item import Record
    from fafo_run.run.plan import RunPlan
    from fafo_run.run.view import View
    from fafo_run.watch.comparison import Compared, Replayed

_LONGEST = 200
"""Characters of a text that people are shown."""


@click.command(short_help="Send one item again; show where the outputs part.")
@click.argument("name", metavar="IDENTITY-OR-KEY")
@click.option("--class", "class_name", metavar="CLASS", help="Only the item of this class.")
@click.option(
    "--engine", metavar="ENGINE", help="An engine of fafo.toml, in place of the one the class names."
)
@click.option(
    "--times",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    default=1,
    show_default=True,
    help="Send it N times, one after the other.",
)
@click.option("--check", is_flag=True, help="Exit 1 when an output differs from the recorded one.")
@run_option
@json_option
@click.pass_context
def replay(
    context: click.Context,
    name: str,
    class_name: str | None,
    engine: str | None,
    times: int,
    check: bool,
    run_name: str,
    as_json: bool,
) -> None:
    """Send one recorded item again, and show where the outputs part.

    IDENTITY-OR-KEY as in `fafo show`. The same ids, parameters and seed go to the server that answered it, if
    it is still declared, else to the first. Nothing is recorded.
    """
    import asyncio

    from fafo_build.errors import ExitCode
    from fafo_run.run.store import RunReader
    from fafo_run.watch.find import find
    from fafo_run.watch.replay import chosen
    from fafo_run.watch.replay import replay as send

    project = project_of(context)
    view = view_of(project, classes=(class_name,) if class_name else ())
    with RunReader.open(run_folder(project, run_name)) as reader:
        record = chosen(find(view, reader, name), name)
    found = asyncio.run(send(_plan(project, view, record, engine), record, times))
    if as_json:
        print_json(found.as_json())
    else:
        tell("\n".join(_lines(found)))
    if check and not found.equal:
        context.exit(ExitCode.USER_ERROR)


def _plan(project: Project, view: View, record: Record, engine: str | None) -> RunPlan:
    """Return the plan of the class that the item belongs to; of any with its model when that is gone."""
    from fafo_run.run.plan import plan_run

    of = record.provenance
    names = [view.owner(of) or of.class_name, of.class_name]
    names += [each.name for each in view.classes if each.model_fingerprint == of.model_fingerprint]
    names += [each.name for each in view.classes]
    name = next(name for name in names if name in project.classes)
    return plan_run(view_of(project, classes=(name,)), engine)


def _lines(found: Replayed) -> Iterator[str]:
    from fafo_run.watch.show import title

    yield f"  {title(found.record)}"
    count = len(found.answers)
    equal = sum(each.parts_at is None for each in found.answers)
    said = "the output is the recorded one" if equal == count else "the output differs"
    if count > 1:
        said = f"{equal} of {count} outputs are the recorded one"
    yield f"  {said}: {len(found.recorded.ids)} tokens, ended by {found.recorded.finish_reason}"
    yield f"  repeats: {found.expected.level.value}; {found.expected.why}"
    for change in found.changes:
        yield f"  changed: {change.what}: {_brief(change.then)} then, {_brief(change.now)} now"
    if found.surprise:
        yield "  they should be equal, and the engine says that nothing has changed: look at its weights"
    for number, each in enumerate(found.answers, 1):
        if each.parts_at is not None:
            yield from _parting(each, number if count > 1 else None)


def _parting(each: Compared, number: int | None) -> Iterator[str]:
    which = "" if number is None else f"answer {number}: "
    yield f"  {which}they part at token {each.parts_at}"
    before = each.before if len(each.before) <= _LONGEST else f"…{each.before[-_LONGEST:]}"
    yield f"    both      {before!r}"
    yield f"    recorded  {_cut(each.recorded)}"
    yield f"    now       {_cut(each.answered)}"


def _cut(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") if text else "(ends here)"


def _brief(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
