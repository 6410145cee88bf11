"""`fafo engine`: servers that outlive a run, and what servers say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fafo_build.cli.options import json_option, print_data, print_json, project_of, quiet_option, say, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from fafo_build.errors import EngineError
    from fafo_build.project.declaration import Engine, Model, Project
    from fafo_run.engines.base import Capabilities
    from fafo_run.engines.launch_up import Up


@click.group()
def engine() -> None:
    """Start, end, list and check servers."""


@engine.command(short_help="Start the servers of an engine, and leave them up.")
@click.argument("name", required=False)
@click.option(
    "--model", "model_name", metavar="MODEL", help="A model of fafo.toml, in place of the classes' own."
)
@json_option
@quiet_option
@click.pass_context
def up(context: click.Context, name: str | None, model_name: str | None, as_json: bool, quiet: bool) -> None:
    """Start what `launch` of the engine NAME (default: the only one) declares, and return when all are ready.

    The servers stay up until `fafo engine down`; runs of that engine use them. One that dies is started
    again. Those that are up already are left as they are. Prints their URLs.
    """
    import asyncio

    from fafo_run.engines.launch_run import recipe_of
    from fafo_run.engines.launch_up import UpFolder

    project = project_of(context)
    chosen = _engine(project, name, lambda spec: spec.launch is not None, "launch")
    model = _model(project, chosen, model_name)

    async def start() -> list[Up]:
        recipe = await recipe_of(chosen, model, project.root)
        return await UpFolder(project.runs_dir).start(
            recipe, lambda line: say(f"  {line}", quiet=quiet or as_json)
        )

    found = asyncio.run(start())
    _print(found, as_json=as_json)


@engine.command(short_help="End the servers that are up.")
@click.argument("name", required=False)
@json_option
@quiet_option
@click.pass_context
def down(context: click.Context, name: str | None, as_json: bool, quiet: bool) -> None:
    """End the servers of the engine NAME (default: of all engines) that `fafo engine up` has started.

    A run that uses them waits until servers are back.
    """
    from fafo_run.engines.launch_up import UpFolder

    project = project_of(context)
    folder = UpFolder(project.runs_dir)
    ended = folder.stop(name)
    if as_json:
        print_json({"servers": [{"engine": up.engine, "url": up.url} for up in ended]})
    for up in ended:
        say(f"  {up.url} ended", quiet=quiet or as_json)
    if not ended:
        say("  no server is up", quiet=quiet or as_json)


@engine.command(short_help="List the servers that are up.")
@json_option
@click.pass_context
def ps(context: click.Context, as_json: bool) -> None:
    """List the servers that `fafo engine up` has started: URL, process, state, model, since when."""
    from fafo_run.engines.launch_up import UpFolder

    found = UpFolder(project_of(context).runs_dir).read()
    if as_json:
        print_json({"servers": _rows(found)})
    else:
        for row in _rows(found):
            tell("  {url}  {state:9}  pid {pid}  {engine}  since {since}  {model}".format(**row))
        if not found:
            say("  no server is up")


@engine.command(short_help="Ask servers what they are, and whether they are alike.")
@click.argument("name", required=False)
@json_option
@click.pass_context
def check(context: click.Context, name: str | None, as_json: bool) -> None:
    """Ask every server of the engine NAME (default: the only one) what it is; name two that differ.

    Those of `urls`, or those that are up. Exit code 1 when one gives no answer, or when two can't answer for
    one run.
    """
    import asyncio
    from itertools import pairwise

    from fafo_build.errors import EngineError, ExitCode
    from fafo_run.engines.ask import ask
    from fafo_run.engines.fleet import difference, remarks, strangers
    from fafo_run.engines.launch_run import with_up
    from fafo_run.engines.sglang import server_urls

    project = project_of(context)
    spec = with_up(_engine(project, name, lambda spec: spec.kind == "sglang", "servers"), project.runs_dir)
    said = asyncio.run(ask(spec))
    answered = [one for one in said if not isinstance(one, EngineError)]
    differing = [line for one, other in pairwise(answered) if (line := difference(one, other))]
    remarked = remarks(answered) + strangers(answered, [model.path for model in project.models.values()])
    if as_json:
        rows = [_said(url, one) for url, one in zip(server_urls(spec), said, strict=True)]
        print_json({"servers": rows, "differences": differing, "remarks": remarked})
    else:
        for one in said:
            if isinstance(one, EngineError):
                say(one.render())
            else:
                tell(f"  {one.server}  {_about(one)}")
        for line in (*differing, *remarked):
            tell(f"  {line}")
    context.exit(ExitCode.USER_ERROR if differing or len(answered) < len(said) else ExitCode.DONE)


def _said(url: str, one: Capabilities | EngineError) -> dict[str, Any]:
    if isinstance(one, Exception):
        return {"url": url, "error": str(one)}
    return {
        "url": url,
        "error": None,
        "version": one.version,
        "model": one.model,
        "page_size": one.page_size,
        "prefix_cache": one.prefix_cache,
        "cache_tokens": one.cache_tokens,
        "context_length": one.context_length,
        "ranks": one.ranks,
        "running": one.running,
        "settings": one.settings,
    }


def _about(one: Capabilities) -> str:
    cache = f"{one.cache_tokens:,} tokens" if one.cache_tokens else "of a size that it doesn't tell"
    parts = [
        f"SGLang {one.version}",
        one.model,
        f"context {one.context_length:,}",
        f"cache {cache}, pages of {one.page_size}" if one.prefix_cache else "no prefix cache",
        f"{one.ranks} ranks" if one.ranks > 1 else None,
        str(one.settings.get("schedule_policy") or "") or None,
        "deterministic" if one.settings.get("enable_deterministic_inference") else None,
    ]
    return " · ".join(part for part in parts if part)


def _print(found: list[Up], *, as_json: bool) -> None:
    if as_json:
        print_json({"servers": _rows(found)})
    else:
        for up in found:
            print_data(up.url)


def _rows(found: list[Up]) -> list[dict[str, Any]]:
    import asyncio
    from datetime import UTC, datetime

    from fafo_run.engines.ask import ready

    rows = []
    for up, well in zip(found, asyncio.run(ready([up.url for up in found])), strict=True):
        pid = up.pid()
        rows.append(
            {
                "engine": up.engine,
                "url": up.url,
                "pid": pid,
                "guard": up.guard,
                "state": "dead" if pid is None else "ready" if well else "not ready",
                "model": up.model,
                "since": datetime.fromtimestamp(up.since, UTC).isoformat(timespec="seconds"),
                "log": up.log,
            }
        )
    return rows


def _engine(project: Project, name: str | None, fits: Callable[[Engine], bool], what: str) -> Engine:
    """Return the engine of this name, or the only one that fits. Raises `DeclarationError`."""
    from fafo_build.errors import DeclarationError
    from fafo_run.run.view import check_names

    if name is not None:
        check_names("engine", (name,), project.engines)
        if fits(project.engines[name]):
            return project.engines[name]
        raise DeclarationError.of(
            f"the engine {name} has no {what}", cure='an engine of kind "sglang" has them: docs/sglang.md'
        )
    fitting = [spec for spec in project.engines.values() if fits(spec)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise DeclarationError.of(
            f"no engine of this project has {what}",
            cure='write kind = "sglang" and launch = { replicas = 1 } in [engine]',
        )
    names = ", ".join(spec.name for spec in fitting)
    raise DeclarationError.of(f"several engines have {what}", cure=f"name one of {names}")


def _model(project: Project, chosen: Engine, name: str | None) -> Model:
    """Return the model of that name, or the one of the engine's classes. Raises `DeclarationError`."""
    from fafo_build.errors import DeclarationError
    from fafo_run.run.view import check_names

    if name is None:
        meant = {of.model for of in project.classes.values() if of.engine == chosen.name}
        meant = meant or {of.model for of in project.classes.values()} or set(project.models)
        if len(meant) > 1:
            raise DeclarationError.of(
                f"the classes have several models: {', '.join(sorted(meant))}", cure="choose one with --model"
            )
        (name,) = meant
    check_names("model", (name,), project.models)
    return project.models[name]
