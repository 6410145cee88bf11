"""Each fault of a server alone, beside a sound server: what a run does about it, and that nothing is lost,
doubled, or asked for without end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_run.run.flights import SUSPECT
from tests.helpers import MAIN, fafo_json, kill, reaches, start, until, write_project
from tests.integration.faults_kit import (
    ATTEMPTS,
    PACE,
    RUNNING,
    SILENCE,
    Outputs,
    ask_these,
    asked,
    others,
    prove,
    recorded,
    run_here,
)
from tests.serving import Faulty, faulty_threads

ITEMS = 60
HITS = 6
"""How many requests meet a fault: fewer than one server is given at once, so that all of them do."""


@pytest.fixture(scope="module")
def _servers() -> Iterator[list[Faulty]]:
    with faulty_threads(2, seconds_per_token=PACE, metrics=True) as found:
        yield found


@pytest.fixture
def servers(_servers: list[Faulty]) -> list[Faulty]:
    for server in _servers:
        server.reset()
    return _servers


@pytest.fixture(scope="module")
def expected(_servers: list[Faulty], tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What servers without faults answer; the same work has the same identities in every project."""
    folder = write_project(tmp_path_factory.mktemp("sound"), ITEMS)
    ended = run_here(ask_these(folder, _servers))
    assert len(ended.recorded.outputs) == ITEMS
    return ended.recorded.outputs


@pytest.fixture
def project(tmp_path: Path, servers: list[Faulty], expected: Outputs) -> Path:
    for server in servers:
        server.reset()
    return ask_these(write_project(tmp_path, ITEMS), servers)


@pytest.mark.parametrize(
    "fault",
    ["reset", "lost", "closed", "busy", "full", "abort503", "error500", "aborted", "truncated", "not_json",
     "nonsense", "counts", "prompt", "strangers"],
)  # fmt: skip
def test_a_passing_fault_costs_no_item(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    servers[0].on(fault, count=HITS, after=1)  # the warm-up passes
    ended = run_here(project)
    assert (ended.outcome.snapshot.completed, ended.outcome.snapshot.failed) == (ITEMS, 0)
    records = prove(ended.recorded, expected, servers)
    # Each request that met the fault was sent once more, and what was under way when that became too much.
    assert 0 < records[0].met[fault] <= HITS
    assert sum(asked(records).values()) <= ITEMS + HITS + RUNNING
    assert max(asked(records).values()) <= SUSPECT + ATTEMPTS
    assert sum(map(others, records)) <= 4 + 2 * HITS


@pytest.mark.parametrize("shape", [0, 1, 2])
def test_an_item_that_is_refused_fails_once_and_alone(
    project: Path, servers: list[Faulty], expected: Outputs, shape: int
) -> None:
    bad = sorted(expected)[7]
    for server in servers:
        server.on("refuse", identities=[bad], shape=shape)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers, {bad: "rejected"})
    assert asked(records)[bad] == 1
    assert sum(asked(records).values()) == ITEMS


@pytest.mark.parametrize("fault", ["strangers", "counts", "prompt", "not_json", "nonsense"])
def test_an_item_whose_answers_are_none_is_tried_as_often_as_it_may_be_and_fails(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    bad = sorted(expected)[7]
    for server in servers:
        server.on(fault, identities=[bad])
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers, {bad: "answer_invalid"})
    assert asked(records)[bad] == ATTEMPTS
    assert all(bad in record.asked for record in records), "the other server might have done better"


def test_a_server_whose_answers_are_none_makes_no_failure(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    servers[0].on("strangers")
    ended = run_here(project)
    prove(ended.recorded, expected, servers)
    assert set(ended.recorded.servers.values()) == {servers[1].url}


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_what_hangs_is_aborted_after_the_silence_and_done_again(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    servers[0].on(fault, count=HITS, after=1)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records).values()) <= ITEMS + HITS + RUNNING
    until(lambda: len(servers[0].record().hung) >= HITS, "nobody waits for what hung")
    record = servers[0].record()
    assert not record.running
    assert set(record.hung) <= set(record.aborted)


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_server_that_hangs_for_good_and_says_it_is_healthy_is_left(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    servers[0].on(fault, after=1)  # the warm-up passes
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert set(ended.recorded.servers.values()) == {servers[1].url}
    record = servers[0].record()
    assert set(record.hung) <= set(record.aborted)
    # It is given one load of work, and then probes.
    assert sum(asked(records[:1]).values()) <= RUNNING
    assert others(records[0]) <= 6


def test_a_slow_death_doesnt_keep_the_other_server_waiting(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    servers[0].on("slow", seconds=0.2)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records[:1]).values()) <= ITEMS // 2


def test_what_says_it_is_unhealthy_and_works_is_used(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    for server in servers:
        server.on("unhealthy", after=2)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records).values()) == ITEMS
    assert min(sum(asked([record]).values()) for record in records) > 0


@pytest.mark.parametrize("fault", ["away", "restart"])
def test_a_server_that_goes_and_comes_back_is_used_again(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    servers[0].on(fault, after=5, seconds=0.3)
    # The other one works slowly, so that there is something left to do.
    servers[1].on("slow", seconds=0.02)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records).values()) <= ITEMS + RUNNING
    assert set(ended.recorded.servers.values()) == {server.url for server in servers}


@pytest.mark.parametrize(
    ("kind", "away", "running"),
    [
        ("poison", 0.0, RUNNING),
        ("poison", 0.1, RUNNING),
        ("poison_routed", 0.0, RUNNING),
        ("poison_routed", 0.0, ITEMS),
    ],
)
def test_an_item_that_kills_servers_is_given_up_and_nothing_else_is(
    project: Path, servers: list[Faulty], expected: Outputs, kind: str, away: float, running: int
) -> None:
    ask_these(project, servers, running=running)
    bad = sorted(expected)[7]
    for server in servers:
        server.on(kind, identities=[bad], seconds=away)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers, {bad: "attempts_exhausted"})
    # Aboard with others until it is a suspect, then alone; each time twice on a kept connection. Where the
    # server is left between the two, it is called back and nothing is counted.
    assert asked(records)[bad] <= 2 * (SUSPECT + ATTEMPTS + 1)
    assert max(asked(records).values()) <= 3 * (SUSPECT + ATTEMPTS)
    assert ended.outcome.exit_code == 3


def test_who_is_aboard_with_an_item_that_kills_loses_no_attempt(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    ask_these(project, servers, MAIN + "\n[run]\nattempts = 1\n")
    bad = sorted(expected)[7]
    for server in servers:
        server.on("poison", identities=[bad], seconds=0.0)
    prove(run_here(project).recorded, expected, servers, {bad: "attempts_exhausted"})


@pytest.mark.parametrize("fault", ["other_model", "swap"])
def test_a_server_that_has_another_model_isnt_used_any_more_and_it_is_said(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str
) -> None:
    servers[0].on(fault, after=5, seconds=0.1)
    servers[1].on("slow", seconds=0.01)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records[:1]).values()) <= 5 + 2 * RUNNING
    said = [text for text in ended.notes.notices if servers[0].url in text]
    assert any({"other_model": "other-model", "swap": "v2"}[fault] in text for text in said), said


def test_without_a_server_the_run_waits_says_so_and_goes_on(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    for server in servers:
        server.on("away", after=10, seconds=600)
    process = start(project, "run")
    try:
        reaches(project, lambda status: bool(status.notice), "the run says that it waits")
        done = sum(len(server.record().answered) for server in servers)
        assert fafo_json(project, "status")["status"] == "running"
        servers[1].on("back")
        _, said = process.communicate(timeout=60)
    finally:
        kill(process)
    assert process.returncode == 0, said
    assert done < ITEMS
    records = prove(recorded(project), expected, servers)
    assert sum(asked(records).values()) <= ITEMS + 2 * RUNNING


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_the_only_server_hangs_and_the_run_says_so_and_goes_on(
    project: Path, servers: list[Faulty], expected: Outputs, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fafo_run.run.server.CANARY", 0.5)
    monkeypatch.setattr("fafo_run.run.pool._UNANSWERED", 1.0)
    ask_these(project, servers[:1])
    servers[0].on(fault, after=10, **{"for": SILENCE + 1})
    ended = run_here(project)
    for said in (f"no answer from {servers[0].url} for 1 s", "no answers from the engine"):
        assert any(said in text for text in ended.notes.waited_for), ended.notes.waited_for
    records = prove(ended.recorded, expected, servers[:1])
    assert sum(asked(records).values()) <= ITEMS + 2 * RUNNING


def test_two_servers_that_are_away_in_turn_cost_no_attempt(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    for turn in range(4):
        servers[turn % 2].on("restart", after=4 + 6 * turn, seconds=0.05)
    ended = run_here(project)
    records = prove(ended.recorded, expected, servers)
    assert sum(asked(records).values()) <= ITEMS + 4 * RUNNING


def test_a_server_that_is_away_at_the_start_joins_when_it_comes(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    servers[0].on("away", seconds=600)
    until(lambda: not servers[0].record().listening, "it is away")
    servers[1].on("slow", seconds=0.02)
    process = start(project, "run")
    try:
        until(lambda: servers[1].count() > 5, "the run works without it")
        servers[0].on("back")
        _, said = process.communicate(timeout=60)
    finally:
        kill(process)
    assert process.returncode == 0, said
    found = recorded(project)
    prove(found, expected, servers)
    assert set(found.servers.values()) == {server.url for server in servers}


def test_what_is_cut_short_is_aborted_and_waits(
    project: Path, servers: list[Faulty], expected: Outputs
) -> None:
    for server in servers:
        server.on("hang", after=5)
    process = start(project, "run")
    try:
        until(lambda: all(len(server.record().running) >= 4 for server in servers), "it hangs")
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        kill(process)
    assert process.returncode == 130
    for server in servers:
        until(lambda server=server: not server.record().running, "nobody waits any more")  # type: ignore[misc]
        record = server.record()
        assert record.hung
        assert set(record.hung) <= set(record.aborted)
        server.off()
    ended = run_here(project)
    prove(ended.recorded, expected, servers)
    assert ended.outcome.snapshot.failed == 0
