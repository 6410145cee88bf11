"""Classes that share a beginning follow each other in a run, and a small cache then serves the beginning."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.engines.base import Prefix, WarmUp
from fafo_run.engines.fake import FakeEngine
from fafo_run.run import supervisor
from fafo_run.run.plan import RunPlan, plan_run
from fafo_run.run.supervisor import Outcome, Supervisor
from fafo_run.run.view import open_view
from tests.helpers import fafo_json, write_project

FAMILIES = ("north", "south")
PER_FAMILY = 4
ROWS = 3
CAPACITY = 500
"""Tokens: one family's beginning, a class of it and its items; not two beginnings."""

CLASS = """
sources = ["facts"]

[[message]]
role = "system"
content = "{{% include '{family}.md' %}}\\nTask {at}."

[[message]]
role = "user"
content = "{{{{ item.text }}}}"

[sampling]
max_new_tokens = 4
temperature = 0
"""


class Quiet:
    def started(self, started: object) -> None: ...
    def tick(self, snapshot: object) -> None: ...
    def notice(self, text: str) -> None: ...


class Leaves(FakeEngine):
    """Ends the run when everything is queued and nothing is answered."""

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        while any(thread.name == "fafo-producer" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        raise RuntimeError("the end")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {
        f"c{at}_{family}": CLASS.format(family=family, at=at)
        for at in range(PER_FAMILY)
        for family in FAMILIES
    }
    folder = write_project(tmp_path_factory.mktemp("order"), ROWS, classes=classes)
    for family in FAMILIES:
        text = " ".join(f"The {family} has rule {at}, which is as good as any." for at in range(20))
        (folder / "prompts" / f"{family}.md").write_text(text)
    build(load_project(folder))
    return folder


def plans(folder: Path) -> tuple[RunPlan, RunPlan]:
    """Return the plan of a run, and the same in the order of the names."""
    project = load_project(folder)
    view = open_view(project, load_baked(project))
    plan = plan_run(view)
    return plan, evolve(plan, view=view)


def run(
    plan: RunPlan, folder: Path, monkeypatch: pytest.MonkeyPatch, engine: type[FakeEngine] = FakeEngine
) -> Outcome:
    def open_small(spec: Any, model: Any, *, root: Path, **facts: Any) -> list[FakeEngine]:
        return [engine(spec, **facts, capacity=CAPACITY)]

    monkeypatch.setattr(supervisor, "open_engines", open_small)
    return Supervisor(plan, folder, Quiet()).run()


def from_cache(outcome: Outcome) -> int:
    """Return how many tokens of the prefixes were in the cache already when their classes began."""
    return sum(found.cached_tokens for found in outcome.warm_ups)


def test_the_order_is_that_of_the_tree(project: Path) -> None:
    plan, by_name = plans(project)
    names = [of.name for of in plan.view.classes]
    assert names == [f"c{at}_{family}" for family in FAMILIES for at in range(PER_FAMILY)]
    assert sorted(names) == [of.name for of in by_name.view.classes]


def test_a_small_cache_serves_the_beginning_of_a_family_to_its_next_class(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, by_name = plans(project)
    together = run(plan, tmp_path / "together", monkeypatch)
    apart = run(by_name, tmp_path / "apart", monkeypatch)
    for outcome in (together, apart):
        assert outcome.snapshot.completed == len(FAMILIES) * PER_FAMILY * ROWS
        assert len(outcome.warm_ups) == len(FAMILIES) * PER_FAMILY
        # Whatever the order, an item finds its own prefix: that is what the ceiling counts.
        assert outcome.snapshot.cached_tokens >= outcome.snapshot.expected_cached_tokens > 0
    prefix = min(len(of.artifact.prefix) for of in plan.view.classes)
    again = len(FAMILIES) * (PER_FAMILY - 1)
    assert from_cache(together) > again * 0.9 * prefix
    assert from_cache(apart) < 0.1 * from_cache(together)


def test_work_that_an_earlier_run_left_in_another_order_is_taken_in_the_order_of_the_tree(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, by_name = plans(project)
    with pytest.raises(RuntimeError, match="the end"):
        run(by_name, tmp_path / "run", monkeypatch, Leaves)
    outcome = run(plan, tmp_path / "run", monkeypatch)
    assert outcome.snapshot.completed == len(FAMILIES) * PER_FAMILY * ROWS
    assert from_cache(outcome) > 1000


def test_verify_counts_the_ceiling_per_prefix_and_more_is_welcome(project: Path) -> None:
    assert fafo_json(project, "run")["completed"] == len(FAMILIES) * PER_FAMILY * ROWS
    told = fafo_json(project, "verify")
    assert told["verdict"] == "ok"
    artifacts = load_baked(load_project(project)).classes.values()
    assert told["ceiling_tokens"] == sum(ROWS * len(baked.artifact.prefix) for baked in artifacts)
    assert told["cached_tokens"] >= told["ceiling_tokens"]
    assert told["ratio"] == 1
