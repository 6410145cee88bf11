"""`fafo build`: bake what is stale, or say what would be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fafo_build.cli import beginnings
from fafo_build.cli.options import (
    FIT,
    USED_ARTIFACTS,
    json_option,
    print_json,
    project_of,
    quiet_option,
    say,
)

if TYPE_CHECKING:
    from fafo_build.bake.bake import BuildReport, ClassReport
    from fafo_build.bake.garbage import Garbage


@click.command(short_help="Bake the prompt classes: constant prefixes become token ids.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when build/ isn't what the sources give.")
@click.option(
    "--explain", "explained", metavar="CLASS", help="Show one class: prefix, holes, what would lengthen it."
)
@click.option("--gc", is_flag=True, help="Then drop what no class, result or queue uses any more.")
@json_option
@quiet_option
@click.pass_context
def build(
    context: click.Context, check: bool, explained: str | None, gc: bool, as_json: bool, quiet: bool
) -> None:
    """Bake the prompt classes: constant prefixes become token ids, proven and locked.

    Only what changed is baked again. Artifacts go to build/artifacts, the lock to build/fafo.lock.
    With --explain nothing is written.
    """
    if explained is not None:
        if check or gc:
            raise click.UsageError("--explain builds nothing: it doesn't go with --check or --gc")
        _explain(context, explained, as_json=as_json)
        return
    from fafo_build.bake.bake import build as bake

    project = project_of(context)
    used = partial(context.meta[USED_ARTIFACTS], project) if gc else None
    unread: list[str] = []
    report = bake(
        project,
        check=check,
        used=used,
        accept=lambda artifacts: unread.extend(context.meta[FIT](project, artifacts)),
    )
    if as_json:
        print_json(_as_json(report))
    else:
        for line in (*_lines(report, check=check), *unread):
            say(line, quiet=quiet)
    if check and not report.is_current:
        context.exit(1)


def _explain(context: click.Context, name: str, *, as_json: bool) -> None:
    from fafo_build.bake.explain import explain
    from fafo_build.bake.now import class_now
    from fafo_build.cli import explain as printing

    present = class_now(project_of(context), name)
    explanation = explain(present.subject, present.others)
    if as_json:
        print_json(printing.as_json(present, explanation))
    else:
        printing.show(present, explanation)


def _lines(report: BuildReport, *, check: bool) -> list[str]:
    width = max(len(found.plan.name) for found in report.classes)
    lines = []
    for found in report.classes:
        artifact = found.artifact
        glue = f" + {found.glue_tokens} glue" if found.glue_tokens else ""
        holes = f"{len(artifact.holes)} hole{'' if len(artifact.holes) == 1 else 's'}"
        lines.append(
            f"  {found.plan.name:{width}}  {len(artifact.prefix):5} tokens prefix{glue} · {holes} · "
            f"{len(artifact.spans[-1].ids)} tail   {artifact.hash[:8]}…   {_state(found, check=check)}"
        )
        if found.plan.state == "stale":
            lines += [f"  {'':{width}}  {reason}" for reason in found.plan.reasons]
    lines += [
        f"  {name}: the class is gone{'' if check else '; taken out of the lock'}"
        for name in report.plan.gone
    ]
    lines += beginnings.lines(report.shared)
    if report.garbage is not None:
        lines.append(_garbage(report.garbage, check=check))
    if check and not report.is_current:
        lines.append("  build/ isn't what the sources give: run `fafo build`")
    return lines


def _garbage(garbage: Sequence[Garbage], *, check: bool) -> str:
    if not garbage:
        return "  nothing to drop: all of build/ is in use"
    size = sum(found.bytes for found in garbage)
    files = "1 file" if len(garbage) == 1 else f"{len(garbage)} files"
    names = beginnings.some([found.file.removesuffix(".json")[:-56] + "…" for found in garbage])
    return f"  {'to drop' if check else 'dropped'}: {files} that nothing uses, {size:,} bytes: {names}"


def _state(found: ClassReport, *, check: bool) -> str:
    if found.plan.state == "current":
        return "unchanged"
    if not found.changed:
        return "same artifact, stale lock" if check else "same artifact, lock renewed"
    return f"{'not baked' if check else 'baked'} ({found.plan.state})"


def _as_json(report: BuildReport) -> dict[str, Any]:
    return {
        "current": report.is_current,
        "classes": {
            found.plan.name: {
                "state": found.plan.state,
                "reasons": list(found.plan.reasons),
                "artifact": found.artifact.hash,
                "changed": found.changed,
                "prefix_tokens": len(found.artifact.prefix),
                "holes": len(found.artifact.holes),
                "glue_tokens": found.glue_tokens,
                "tail_tokens": len(found.artifact.spans[-1].ids),
            }
            for found in report.classes
        },
        "gone": list(report.plan.gone),
        "shared": beginnings.as_json(report.shared),
        "garbage": None
        if report.garbage is None
        else [{"file": found.file, "bytes": found.bytes} for found in report.garbage],
        "seconds": report.seconds,
    }
