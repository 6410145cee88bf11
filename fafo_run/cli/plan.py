"""`fafo plan`: what a run would do, before it does it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click
from attrs import evolve

from fafo_build.cli.options import json_option, print_json, project_of, say, tell
from fafo_run.cli.options import (
    check_current,
    filter_options,
    fitting_view,
    run_folder,
    run_option,
    stale_option,
)

if TYPE_CHECKING:
    from fafo_run.run.forecast import Forecast
    from fafo_run.run.rehearsal import Rehearsal

_SAMPLE = 2_000
_CLASSES = 20
"""Classes that people are shown."""


@click.command(short_help="Say what a run would do, need and reach.")
@stale_option
@click.option(
    "--engine", metavar="ENGINE", help="An engine of fafo.toml, in place of the one each class names."
)
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    default=_SAMPLE,
    show_default=True,
    help="Encode about N items, and estimate from them.",
)
@click.option("--all", "encode_all", is_flag=True, help="Encode every item instead of a sample.")
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="A server's cache, in tokens; its servers aren't asked then.",
)
@click.option("--page-size", type=click.IntRange(min=1), metavar="P", help="The cache's page, in tokens.")
@click.option(
    "--check", is_flag=True, help="Exit 4 when less than verify.min_hit_rate is predicted, 1 without room."
)
@filter_options
@run_option
@json_option
@click.pass_context
def plan(
    context: click.Context,
    stale: bool,
    engine: str | None,
    sample: int,
    encode_all: bool,
    cache_tokens: int | None,
    page_size: int | None,
    check: bool,
    classes: tuple[str, ...],
    sources: tuple[str, ...],
    limit: int | None,
    run_name: str,
    as_json: bool,
) -> None:
    """Say what a run would do: items, tokens, lanes, disk, and what the cache can serve.

    No run is started and nothing is written. Servers that are up are asked how large their caches are; of
    those that aren't say --cache-tokens and --page-size.
    """
    from fafo_build.errors import ExitCode
    from fafo_run.engines.launch_run import with_up
    from fafo_run.run.caches import Given
    from fafo_run.run.forecasting import forecast
    from fafo_run.run.plan import plan_run

    project = project_of(context)
    if not stale:
        check_current(project)
    planned = plan_run(fitting_view(project, classes=classes, sources=sources, limit=limit), engine)
    planned = evolve(planned, engine=with_up(planned.engine, project.runs_dir))
    found = forecast(
        planned,
        run_folder(project, run_name),
        sample=None if encode_all else sample,
        given=Given(cache_tokens, page_size),
    )
    if as_json:
        from fafo_build.cli.beginnings import as_json as shared

        print_json(found.as_json() | {"shared": shared(found.trees)})
    else:
        tell("\n".join(_lines(found)))
    for concern in () if as_json else found.warnings:
        say(f"  {concern.level}: {concern.text}\n    cure: {concern.cure}")
    if check and not found.disk.fits:
        context.exit(ExitCode.USER_ERROR)
    if check and found.below:
        context.exit(ExitCode.VERIFY_BELOW)


def _lines(found: Forecast) -> Iterator[str]:
    from fafo_build.cli.beginnings import lines as tree_lines
    from fafo_run.run.forecast import lanes
    from fafo_run.watch.progress import percent

    told = found.as_json()
    items, about = told["items"], "" if found.left.exact else "about "
    yield f"  run {found.run} · {found.engine} ({found.kind})"
    yield f"  items: {items['total']:,}, {items['done']:,} done, {items['left']:,} left"
    if not found.left.exact:
        yield f"  from {found.left.encoded:,} encoded items; all of them with --all"
    most, expected = told["output_tokens"]["most"], told["output_tokens"]["expected"]
    yield (
        f"  tokens: {about}{told['prompt_tokens']:,} of prompts, at most {most:,} of outputs"
        + (f", {about}{expected:,} expected" if expected != most else "")
    )
    for name, of in islice(told["by_class"].items(), _CLASSES):
        prompts = f"{about}{of['prompt_tokens']:,} of prompts"
        yield f"  {name}: {of['left']:,} left · {of['prefix_tokens']:,} tokens prefix · {prompts}"
    if len(told["by_class"]) > _CLASSES:
        yield f"    and {len(told['by_class']) - _CLASSES} more classes; all of them with --json"
    for lane, count in lanes(found.left).items():
        yield f"  lane {lane}: {about}{count['items']:,} items, {count['prompt_tokens']:,} prompt tokens"
    yield from tree_lines(found.trees)
    if told["ceiling"] is not None:
        page = "" if found.page_size == 1 else f" with pages of {found.page_size}"
        yield f"  ceiling: {percent(told['ceiling'])} of prompt tokens could come from the cache{page}"
    if found.rehearsal is not None:
        yield from _rehearsed(found, found.rehearsal)
    disk = found.disk
    yield (
        f"  disk: {_size(disk.queue)} of queue, {_size(disk.results)} of results at most "
        f"({_size(disk.expected)} expected) · {_size(disk.free)} free"
    )


def _rehearsed(found: Forecast, played: Rehearsal) -> Iterator[str]:
    from fafo_run.watch.progress import percent
    from fafo_run.watch.words import counted

    size, needs = played.size, played.needs
    cache = f"the cache of {size.tokens:,} tokens"
    if played.caches > 1:
        cache = f"each of {played.caches} caches of {size.tokens:,} tokens"
    if played.server:
        cache = f"the fullest of {played.caches} caches, of {size.tokens:,} tokens at {played.server}"
    yield (
        f"  {cache}: predicted {percent(played.hit_rate or 0)} of prompt tokens, "
        f"{played.ratio or 0:.3f} of the ceiling, {found.min_hit_rate:g} asked for"
    )
    yield (
        f"    {needs.running} of {size.in_flight} requests in flight run at once · "
        f"{counted(needs.warm_ups, 'warm-up')}" + (f", {needs.again} of them again" if needs.again else "")
    )
    classes = len([each for each in found.left.classes if each.left])
    left = sum(each.left for each in found.left.classes)
    if played.items < left:
        yield f"    simulated with {played.items:,} items of {played.classes} of {classes} classes"


def _size(count: int) -> str:
    """Return bytes as people say them."""
    value = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
