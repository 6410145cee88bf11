"""Servers that aren't there when a run begins, and the open files that they need when they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import project as project_of
from bake_kit import prompt_class

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.errors import EngineError
from fafo_build.project import declaration
from fafo_run.engines.base import Capabilities
from fafo_run.engines.fake import FakeEngine
from fafo_run.run import pool, preflight
from fafo_run.run.evidence import Evidence
from fafo_run.run.pool import Pool
from fafo_run.run.view import View, open_view

SOURCE = declaration.Source("rows", "files", ("id",), path=("rows.jsonl",))
ROOM = 100
"""Calls that may be under way at a server."""


class Listed(FakeEngine):
    """A server of a URL, that is there or isn't."""

    def __init__(self, server: str, *, is_there: bool = True) -> None:
        super().__init__(declaration.Engine("default", "fake"), vocab_size=49_152, context_length=8_192)
        self.server, self.is_there = server, is_there

    async def start(self) -> Capabilities:
        if not self.is_there:
            raise EngineError.of(f"no server at {self.server}", cure="start it")
        return evolve(await super().start(), server=self.server, concurrency=ROOM)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    folder = tmp_path_factory.mktemp("project")
    project = project_of(folder, prompt_class(folder, ("user", "Tell: {{ item.q }}"), name="plain"))
    project = evolve(project, sources={"rows": SOURCE})
    build(project)
    return open_view(project, load_baked(project))


class Bench:
    def __init__(self, folder: Path, view: View) -> None:
        self.early, self.late = Listed("http://a"), Listed("http://b", is_there=False)
        self.said: list[str] = []
        self.pool = Pool([self.early, self.late], view, Evidence(folder), self.said.append)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            await self.pool.start()
            try:
                await asyncio.wait_for(main(), 30)
            finally:
                await self.pool.stop()

        asyncio.run(whole())


@pytest.fixture
def bench(tmp_path: Path, view: View, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(pool, "_FIRST_TRY", 0.001)
    return Bench(tmp_path, view)


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_a_server_that_may_join_later_is_among_the_open_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(preflight, "descriptors", counted.append)

    async def main() -> None:
        assert counted == [2 * ROOM], "as large as the one that is there"
        bench.late.is_there = True
        await until(lambda: len(bench.pool.servers) == 2)
        assert counted == [2 * ROOM, 2 * ROOM]

    bench.run(main)


def test_a_server_that_needs_more_open_files_than_may_be_is_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        def refuse(connections: int) -> None:
            raise EngineError.of(f"{connections} are too many", cure="raise the limit")

        monkeypatch.setattr(preflight, "descriptors", refuse)
        bench.late.is_there = True
        await until(lambda: any(f"{2 * ROOM} are too many" in line for line in bench.said))
        assert f"{2 * ROOM} are too many" in bench.pool.away["http://b"]
        (server,) = bench.pool.servers
        assert "too many" in (server._differs(evolve(server.capabilities, concurrency=3 * ROOM)) or "")

    bench.run(main)
