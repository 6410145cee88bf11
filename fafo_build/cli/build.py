"""`fafo build`: bake what is stale, or say what would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fafo_build.cli.options import json_option, print_json, project_of, quiet_option, say

if TYPE_CHECKING:
    from fafo_build.bake.bake import BuildReport, ClassReport


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when build/ isn't what the sources give.")
@json_option
@quiet_option
@click.pass_context
def build(context: click.Context, check: bool, as_json: bool, quiet: bool) -> None:
    """Bake the prompt classes: constant prefixes become token ids, proven and locked.

    Only what changed is baked again. Artifacts go to build/artifacts, the lock to build/fafo.lock.
    """
    from fafo_build.bake.bake import build as bake

    report = bake(project_of(context), check=check)
    if as_json:
        print_json(_as_json(report))
    else:
        for line in _lines(report, check=check):
            say(line, quiet=quiet)
    if check and not report.is_current:
        context.exit(1)


def _lines(report: BuildReport, *, check: bool) -> list[str]:
    width = max(len(found.plan.name) for found in report.classes)
    lines = []
    for found in report.classes:
        artifact = found.artifact
        holes = f"{len(artifact.holes)} hole{'' if len(artifact.holes) == 1 else 's'}"
        lines.append(
            f"  {found.plan.name:{width}}  {len(artifact.prefix):5} tokens prefix · {holes} · "
            f"{len(artifact.spans[-1].ids)} tail   {artifact.hash[:8]}…   {_state(found, check=check)}"
        )
        if found.plan.state == "stale":
            lines += [f"  {'':{width}}  {reason}" for reason in found.plan.reasons]
    lines += [
        f"  {name}: the class is gone{'' if check else '; taken out of the lock'}"
        for name in report.plan.gone
    ]
    lines += [
        f"  shared beginning: {shared.tokens} tokens of {', '.join(shared.classes)}"
        for shared in report.shared
    ]
    if check and not report.is_current:
        lines.append("  build/ isn't what the sources give: run `fafo build`")
    return lines


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
                "tail_tokens": len(found.artifact.spans[-1].ids),
            }
            for found in report.classes
        },
        "gone": list(report.plan.gone),
        "shared": [{"classes": list(shared.classes), "tokens": shared.tokens} for shared in report.shared],
        "seconds": report.seconds,
    }
