"""How to open each kind of engine with a model that it can compute; for the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import evolve, frozen

from fafo_build.project import declaration
from fafo_run.engines.base import Capabilities, Engine
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.open import open_engines
from tests.fake_sglang import FakeSglang

MODEL = declaration.Model("default", "fake-model")


@frozen
class Opened:
    """A started engine and what it said of itself."""

    engine: Engine
    capabilities: Capabilities


@frozen
class Harness:
    """One kind of engine."""

    spec: declaration.Engine
    model: declaration.Model = MODEL
    vocab_size: int = 1000
    context_length: int = 512
    page_size: int = 1
    seeded: bool = True
    """Whether sampling repeats for a seed. A server does it with deterministic inference only."""
    server: str = ""
    """`fake`: a new server for each engine."""
    text: Callable[[Sequence[int]], str] | None = None
    """What ids stand for, where the engine knows it."""
    eos_ids: tuple[int, ...] = ()
    """What ends an output that has a form."""
    root: Path = Path("/nonexistent")

    def engine(self, eos_ids: Collection[int], url: str) -> Engine:
        """Return an engine that isn't started."""
        if self.spec.kind == "fake":
            return FakeEngine(
                self.spec,
                vocab_size=self.vocab_size,
                context_length=self.context_length,
                eos_ids=eos_ids,
                page_size=self.page_size,
            )
        (engine,) = open_engines(
            evolve(self.spec, urls=(url,)) if url else self.spec,
            self.model,
            root=self.root,
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            eos_ids=eos_ids,
        )
        return engine

    @asynccontextmanager
    async def opened(self, *, eos_ids: Collection[int] = ()) -> AsyncIterator[Opened]:
        """Give a started engine, and stop it."""
        async with self.served() as url:
            engine = self.engine(eos_ids, url)
            try:
                yield Opened(engine, await engine.start())
            finally:
                await engine.stop()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Give the URL of the server that the engine needs, empty if it needs none."""
        if self.server != "fake":
            yield self.server
            return
        async with FakeSglang(
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            page_size=self.page_size,
            eos_ids=(),
        ) as server:
            yield server.url
