"""What the dispatcher holds comes back, whenever a server goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve

from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Prefix
from fafo_run.engines.fake import FakeEngine
from fafo_run.item import Claim
from fafo_run.run.dispatcher import Dispatcher
from fafo_run.run.evidence import Evidence
from fafo_run.run.server import Server
from fafo_run.run.state import RunState
from tests.log_nouns import item

PREFIX = Prefix("a" * 64, (1, 2, 3))


class Bench:
    """A dispatcher over one server, with a queue that notes what is given back."""

    def __init__(self, folder: Path) -> None:
        self.released: list[Claim] = []
        engine = FakeEngine(declaration.Engine("default", "fake"), vocab_size=10, context_length=100)
        limits = evolve(engine._capabilities, server="http://a")
        self.server = Server(engine, limits, Evidence(folder), lambda _: None, differs=lambda _: None)
        self.state = RunState({})
        of = SimpleNamespace(
            name="ask",
            artifact=SimpleNamespace(hash=PREFIX.artifact, prefix=PREFIX.ids),
            sampling=Sampling(),
            model=SimpleNamespace(locked=SimpleNamespace(context_length=100)),
        )
        self.dispatcher = Dispatcher(
            cast(Any, SimpleNamespace(release=self.released.extend)),
            cast(Any, SimpleNamespace(capabilities=[limits], ranks=self.server.ranks)),
            cast(
                Any,
                SimpleNamespace(
                    classes=[of], project=SimpleNamespace(run=declaration.Run()), owner=lambda _: "ask"
                ),
            ),
            cast(Any, None),
            self.state,
            producing=lambda: False,
        )

    def submit(self, *numbers: int) -> list[Claim]:
        claims = [Claim(bytes(16), number, number, 1, item(number)) for number in numbers]
        self.dispatcher._heartbeat.begin(claims)
        self.state.in_flight += len(claims)
        self.dispatcher._submit(self.server.ranks[0], claims, PREFIX)
        return claims


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("turns", [0, 1])
def test_what_was_about_to_leave_when_its_server_went_is_given_back(bench: Bench, turns: int) -> None:
    async def main() -> None:
        claims = bench.submit(1, 2, 3)
        for _ in range(turns):
            await asyncio.sleep(0)
        bench.dispatcher._recall(bench.server, died=False)
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(claim.offset for claim in bench.released) == [claim.offset for claim in claims]

    asyncio.run(main())
    assert not len(bench.dispatcher._flights)
    assert bench.state.in_flight == 0
    assert bench.server.ranks[0].room.taken == 0
