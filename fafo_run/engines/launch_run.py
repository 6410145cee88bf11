"""What a run does with an engine that declares `launch`: uses the servers that are up, or starts its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import evolve

from fafo_build.project.declaration import Engine, Model
from fafo_run.engines.launch import Servers
from fafo_run.engines.launch_recipe import Recipe, recipe
from fafo_run.engines.launch_server import Tell, unheard
from fafo_run.engines.launch_up import UpFolder
from fafo_run.engines.weights import model_folder

LOGS = "servers"
"""In a run's folder: the logs of its servers."""


def with_up(engine: Engine, runs: Path) -> Engine:
    """Return an engine that declares `launch` with the URLs of its servers that are up, if any.

    For those who look and start none. `runs` is the folder of the project's runs. Raises `EngineError`.
    """
    up = UpFolder(runs).read(engine.name) if engine.launch is not None else []
    return evolve(engine, urls=tuple(each.url for each in up), launch=None) if up else engine


@asynccontextmanager
async def launched(
    engine: Engine, model: Model, *, root: Path, runs: Path, run: Path, tell: Tell, waits: Tell = unheard
) -> AsyncIterator[Engine]:
    """Give the engine with the URLs of its servers; end those that this has started.

    An engine without `launch` comes as it is. `root` is the project's folder, `runs` that of its runs, `run`
    that of this one. `tell` is called with lines for people, also later on, when a server dies; `waits` with
    what is waited for until the servers are ready, and with nothing then.

    Raises `EngineError` when a server doesn't get ready, `ModelError` when the model can't be loaded.
    """
    if engine.launch is None:
        yield engine
        return
    waits(f"waiting for the weights of {model.path}")
    made = await recipe_of(engine, model, root)
    waits("")
    up = UpFolder(runs).read(engine.name)
    if up:
        tell(f"uses the {'server' if len(up) == 1 else f'{len(up)} servers'} of `fafo engine up`")
        if any(each.settings != made.settings for each in up):
            tell("they were started with other settings than launch has now: `fafo engine down` ends them")
        yield evolve(engine, urls=tuple(each.url for each in up), launch=None)
        return
    servers = Servers(made, run / LOGS, tell)
    try:
        urls = await servers.start(tell, waits=waits)
        yield evolve(engine, urls=urls, launch=None)
    finally:
        await servers.stop()


async def recipe_of(engine: Engine, model: Model, root: Path) -> Recipe:
    """Return how the servers of an engine are started for a model.

    The model is downloaded or converted if need be. Raises `ModelError` and `EngineError`.
    """
    folder = await asyncio.to_thread(model_folder, model, root)
    return recipe(engine, folder, root=root, trust_remote_code=model.trust_remote_code)
