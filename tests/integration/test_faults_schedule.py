"""Any schedule of faults at two servers: nothing is lost, doubled, made up, or asked for without end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fafo_run.run.flights import SUSPECT
from tests.fault_kinds import TRANSIENT
from tests.helpers import write_project
from tests.integration.faults_kit import (
    ATTEMPTS,
    PACE,
    RUNNING,
    Outputs,
    ask_these,
    asked,
    others,
    prove,
    run_here,
)
from tests.serving import Faulty, faulty_threads

ITEMS = 100

BREAKS = ("away", "restart", "other_model")
"""What breaks all connections of a server, whatever they are for."""


@frozen
class Event:
    """One fault at one server."""

    server: int
    fault: str
    after: int
    """Requests that it lets pass before."""
    count: int
    """Requests that meet it; of what lasts, tenths of a second."""

    def switch_on(self, servers: Sequence[Faulty]) -> None:
        match self.fault:
            case "away" | "restart" | "other_model" | "swap":
                fields = {"seconds": 0.05 * self.count}
            case "slow":
                fields = {"seconds": 0.01, "for": 0.1 * self.count}
            case _:
                fields = {"count": self.count}
        servers[self.server].on(self.fault, after=self.after, **fields)


def events(faults: Sequence[str], server: int) -> st.SearchStrategy[Event]:
    return st.builds(
        Event, st.just(server), st.sampled_from(faults), st.integers(0, ITEMS // 2), st.integers(1, 6)
    )


LASTING = ("slow", "unhealthy", "away", "restart")
SILENT = ("hang", "drip")
EITHER = tuple(fault for fault in (*LASTING, *TRANSIENT) if fault not in SILENT)


def schedules(*, silent: bool) -> st.SearchStrategy[list[Event]]:
    """Any list of events. One server at most gets another model: with two the run would wait for ever."""
    both = (*EITHER, *SILENT) if silent else EITHER
    return st.lists(
        st.one_of(events((*both, "other_model", "swap"), 0), events(both, 1)), min_size=1, max_size=8
    )


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Faulty]]:
    with faulty_threads(2, seconds_per_token=PACE) as found:
        yield found


@pytest.fixture(scope="module")
def project(servers: list[Faulty], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ask_these(write_project(tmp_path_factory.mktemp("schedule"), ITEMS), servers)


@pytest.fixture(scope="module")
def expected(project: Path) -> Outputs:
    """What the servers answer without faults."""
    found = run_here(project).recorded.outputs
    assert len(found) == ITEMS
    return found


@pytest.fixture(scope="module")
def survive(servers: list[Faulty], project: Path, expected: Outputs) -> Callable[[list[Event]], None]:
    def run(schedule: list[Event]) -> None:
        shutil.rmtree(project / "runs")
        for server in servers:
            server.reset()
        for event in schedule:
            event.switch_on(servers)
        ended = run_here(project)
        failures = ended.recorded.failures
        records = prove(ended.recorded, expected, servers, failures)
        cost = asked(records)
        # No item is to blame: one that failed was hit by chance as often as it may be tried.
        assert set(failures.values()) <= {"attempts_exhausted", "answer_invalid"}
        assert all(cost[name] >= ATTEMPTS for name in failures)
        met = sum(sum(record.met.values()) for record in records)
        # Each break takes all that is under way with it, and an idle server takes over what a slow one has.
        breaks = sum(event.fault in BREAKS for event in schedule)
        assert sum(cost.values()) <= ITEMS + met + 2 * RUNNING * (1 + breaks)
        assert max(cost.values()) <= 2 * (SUSPECT + ATTEMPTS) + breaks
        assert sum(map(others, records)) <= 4 + 2 * met + 8 * len(schedule)

    return run


COMMON = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}


@given(schedule=schedules(silent=False))
@settings(max_examples=5, derandomize=True, **COMMON)  # type: ignore[arg-type]
def test_a_schedule_of_faults(survive: Callable[[list[Event]], None], schedule: list[Event]) -> None:
    survive(schedule)


@pytest.mark.slow
@given(schedule=schedules(silent=True))
@settings(max_examples=40, **COMMON)  # type: ignore[arg-type]
def test_many_schedules_of_faults(survive: Callable[[list[Event]], None], schedule: list[Event]) -> None:
    survive(schedule)
