"""How many items per second `fafo run` takes through source, prompt, queue and results, with the instant
engine.

The engine's own share is measured alone and printed beside it, so that the rest is fafo's.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.engines.base import Capabilities, Prefix, Request
from fafo_run.engines.fake import FakeEngine
from fafo_run.prompt import PromptEncoder
from fafo_run.run.outcome import Started
from fafo_run.run.plan import plan_run
from fafo_run.run.state import Snapshot
from fafo_run.run.supervisor import Supervisor
from fafo_run.run.view import View, items, open_view
from tests.helpers import MAIN, write_project


class Silent:
    """A listener that says nothing."""

    capabilities: Capabilities

    def started(self, started: Started) -> None:
        self.capabilities = started.capabilities

    def tick(self, snapshot: Snapshot) -> None:
        pass

    def notice(self, text: str) -> None:
        pass


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(name: str, count: int, step: Callable[[], object]) -> None:
    before, begun = cpu(), time.perf_counter()
    step()
    spent, wall = cpu() - before, time.perf_counter() - begun
    print(f"{name:34} {count / spent:9,.0f} items per CPU second   {wall:6.1f} s wall")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as name:
        folder = write_project(Path(name), count, main=MAIN.replace("max_running = 8", "max_running = 64"))
        project = load_project(folder)
        build(project)
        view = open_view(project, load_baked(project))
        measured("reading and identities", count, lambda: sum(1 for _ in items(view)))
        requests: list[Request] = []
        measured("and prompts", count, lambda: requests.extend(encode(view)))
        measured("the fake engine alone", count, lambda: asyncio.run(answer(view, requests)))
        supervisor = Supervisor(plan_run(view), folder / "runs" / "main", Silent())
        measured("fafo run, all of it", count, supervisor.run)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def encode(view: View) -> list[Request]:
    encoders = {of.name: PromptEncoder(of.artifact, of.model.encoder) for of in view.classes}
    requests = []
    for item in items(view):
        prompt = encoders[item.of.name].encode(item.row.fields, item.row.source, item.row.key)  # type: ignore[union-attr]
        prefix = Prefix(item.of.artifact.hash, item.of.artifact.prefix)
        requests.append(Request(item.identity, 1, prefix, prompt.suffix, item.of.sampling, 1))
    return requests


async def answer(view: View, requests: list[Request]) -> None:
    facts = view.classes[0].model.locked
    engine = FakeEngine(
        view.project.engines["default"],
        vocab_size=facts.vocab_size,
        context_length=facts.context_length,
        eos_ids=facts.eos_ids,
    )
    await engine.start()
    for at in range(0, len(requests), 64):
        await engine.generate(requests[at : at + 64])


if __name__ == "__main__":
    main()
