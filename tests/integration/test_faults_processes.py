"""Servers that are processes: killed, started again, stopped and let go on, while a run asks them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import MAIN, fafo_json, kill, reaches, start, until, write_project
from tests.integration.faults_kit import PACE, RUNNING, ask_these, asked, recorded, run_here
from tests.serving import Faulty, faulty_processes

ITEMS = 300

pytestmark = pytest.mark.slow


@pytest.fixture
def servers() -> Iterator[list[Faulty]]:
    with faulty_processes(2, seconds_per_token=4 * PACE, metrics=True) as found:
        yield found


@pytest.fixture
def expected(servers: list[Faulty], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, ...]]:
    folder = ask_these(write_project(tmp_path_factory.mktemp("sound"), ITEMS), servers)
    outputs = dict(run_here(folder).recorded.outputs)
    for server in servers:
        server.reset()
    return outputs


def test_one_is_killed_and_started_again_and_the_other_is_stopped_meanwhile(
    tmp_path: Path, servers: list[Faulty], expected: dict[str, tuple[int, ...]]
) -> None:
    one, other = servers
    folder = ask_these(write_project(tmp_path, ITEMS), servers)
    process = start(folder, "run")
    try:
        until(lambda: one.count() > 30 and other.count() > 30, "both work")
        before = one.record()
        one.kill()
        other.freeze()
        reaches(folder, lambda status: bool(status.notice), "the run says that it waits")
        one.start(seconds_per_token=4 * PACE, metrics=True)
        until(lambda: one.count() > 10, "the one that was killed works again")
        other.thaw()
        _, said = process.communicate(timeout=120)
    finally:
        kill(process)
    assert process.returncode == 0, said
    found = recorded(folder)
    assert found.complete
    assert not found.failures
    assert found.outputs == expected
    cost = asked([before, one.record(), other.record()])
    # The rest is what the killed one was asked between its record and its death.
    assert ITEMS - RUNNING * 4 <= sum(cost.values()) <= ITEMS + 4 * RUNNING
    assert fafo_json(folder, "verify", check=None)["completeness"]["lost"] == 0


def test_another_model_after_an_idle_time_is_noticed(
    tmp_path: Path, servers: list[Faulty], expected: dict[str, tuple[int, ...]]
) -> None:
    folder = write_project(tmp_path, 20)
    ask_these(folder, servers[:1], MAIN + '\n[run]\npoll = "200ms"\n')
    process = start(folder, "run", "--service")
    try:
        until(lambda: servers[0].count() > 20, "the first rows are done")
        # Nothing is under way: no request sees it go.
        servers[0].on("other_model", seconds=3)
        until(lambda: not servers[0].record().listening, "it is away")
        until(lambda: servers[0].record().listening, "it is back")
        with (folder / "facts.jsonl").open("a") as file:
            for number in range(20, 30):
                row = {"id": number, "text": f"number {number} is {number * number} squared"}
                file.write(json.dumps(row) + "\n")
        reaches(folder, lambda status: "other-model" in status.notice, "the run says what it waits for")
    finally:
        kill(process)
    outputs = recorded(folder).outputs
    assert len(outputs) == 20
    assert all(expected[name] == ids for name, ids in outputs.items())
    prove_nothing_doubled(folder)


def prove_nothing_doubled(folder: Path) -> None:
    told = fafo_json(folder, "verify", check=None)["completeness"]
    assert (told["doubled"], told["lost"]) == (0, 0)
