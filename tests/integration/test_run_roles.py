"""The roles of a run whose engine misbehaves: leases, attempts, doubled items, restarts of a service."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from attrs import evolve

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.errors import StoreError
from fafo_build.project.load import load_project
from fafo_run.engines.base import Capabilities, Completion, Prefix, Request, Unavailable, WarmUp
from fafo_run.engines.fake import FakeEngine
from fafo_run.item import Failure, Record
from fafo_run.log.directory import RunDirectory
from fafo_run.queue.queue import Queue
from fafo_run.queue.writer import QueueWriter
from fafo_run.run import completer, supervisor
from fafo_run.run.heartbeat import Heartbeat
from fafo_run.run.making import Maker
from fafo_run.run.outcome import Outcome, Started
from fafo_run.run.plan import RunPlan, plan_run
from fafo_run.run.state import Snapshot
from fafo_run.run.store import RunReader
from fafo_run.run.supervisor import Supervisor
from fafo_run.run.view import items, open_view
from tests.helpers import write_project

ITEMS = 6


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    folder = write_project(tmp_path_factory.mktemp("roles"), ITEMS)
    build(load_project(folder))
    project = load_project(folder)
    return plan_run(open_view(project, load_baked(project)))


def with_settings(plan: RunPlan, **settings: Any) -> RunPlan:
    project = plan.view.project
    project = evolve(project, run=evolve(project.run, **settings))
    return evolve(plan, view=evolve(plan.view, project=project))


class Watching(FakeEngine):
    """Counts how often each item was asked for."""

    asked: ClassVar[Counter[bytes]] = Counter()
    latency: ClassVar[float] = 0.0

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings, latency=self.latency, concurrency=4)

    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        self.asked.update(request.identity for request in requests)
        self.before(requests)
        return await super().generate(requests)

    def before(self, requests: Sequence[Request]) -> None:
        """Called for each request that arrives."""


class Listening:
    """Keeps what it is told, and stops a service as soon as something is so."""

    def __init__(self, enough: Callable[[Snapshot], bool] = lambda _: False) -> None:
        self.notices: list[str] = []
        self.begun: list[Started] = []
        self._enough = enough
        self._told = False

    def started(self, started: Started) -> None:
        self.begun.append(started)

    def tick(self, snapshot: Snapshot) -> None:
        if not self._told and self._enough(snapshot):
            self._told = True
            os.kill(os.getpid(), signal.SIGTERM)

    def notice(self, text: str) -> None:
        self.notices.append(text)


def run(
    plan: RunPlan,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: type[Watching],
    listener: Listening | None = None,
    *,
    service: bool = False,
) -> Outcome:
    engine.asked = Counter()

    def opened(spec: Any, model: Any, *, root: Path, **facts: Any) -> list[FakeEngine]:
        return [engine(evolve(spec, max_running=1), **facts)]

    monkeypatch.setattr(supervisor, "open_engines", opened)
    return Supervisor(plan, folder, listener or Listening(), service=service).run()


def all_done(snapshot: Snapshot) -> bool:
    return snapshot.completed == ITEMS


def records(folder: Path) -> list[Record]:
    with RunReader.open(folder) as reader:
        return list(reader.results.effective())


# ---- leases


class Slow(Watching):
    latency = 3.0


@pytest.mark.parametrize("beats", [True, False])
def test_a_slow_answer_isnt_asked_for_twice(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    """Without a heartbeat it would be: the other case shows that the lease really ends meanwhile."""
    monkeypatch.setattr(completer, "_COLLECT", 0.05)
    if not beats:
        monkeypatch.setattr(Heartbeat, "beat", lambda self: 0)
    few = with_settings(evolve(plan, view=evolve(plan.view, limit=2)), lease=2.0)
    outcome = run(few, tmp_path / "run", monkeypatch, Slow)
    assert outcome.snapshot.completed == 2
    assert (set(Slow.asked.values()) == {1}) == beats
    assert (outcome.dropped == 0) == beats


def test_only_claims_that_are_under_way_are_extended(tmp_path: Path) -> None:
    from tests.log_nouns import item

    now = [0.0]
    with RunDirectory.own(tmp_path / "run") as directory:
        queue = Queue(directory, lease=60.0, monotonic=lambda: now[0])
        queue.append([item(1), item(2)])
        first, second = queue.claim(2)
        heartbeat = Heartbeat(queue, 60.0)
        heartbeat.begin([first, second])
        now[0] = 50.0
        assert heartbeat.beat() == 2
        heartbeat.end([second])
        now[0] = 109.0
        assert heartbeat.beat() == 1
        now[0] = 110.0
        assert queue.expired() == [second]
        # Handed out again: the late claim extends nothing.
        queue.release(queue.expired())
        queue.claim(1)
        heartbeat.begin([second])
        assert heartbeat.beat() == 1
        queue.close(clean=True)


# ---- attempts


class Poisoned(Watching):
    """Gives no answer to one item while it lives, and dies with the whole process at one of its attempts."""

    dies_at: ClassVar[int] = 0
    poison: ClassVar[bytes] = b""

    def before(self, requests: Sequence[Request]) -> None:
        cls = type(self)
        cls.poison = cls.poison or requests[0].identity
        if requests[0].identity == self.poison:
            if self.asked[self.poison] == self.dies_at:
                raise RuntimeError("the process dies")
            raise Unavailable("HTTP 500")


def test_attempts_are_counted_across_runs_and_told(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Poisoned, "poison", b"")
    monkeypatch.setattr(Poisoned, "dies_at", 2)
    with pytest.raises(RuntimeError, match="dies"):
        run(plan, tmp_path / "run", monkeypatch, Poisoned)
    assert Poisoned.asked[Poisoned.poison] == 2
    with RunReader.open(tmp_path / "run") as reader:
        (waiting,) = (item for item in reader.queue.items() if item.identity == Poisoned.poison)
    assert waiting.attempts == 1, "the attempt that the crash ended counts for nothing"
    monkeypatch.setattr(Poisoned, "dies_at", 0)
    outcome = run(plan, tmp_path / "run", monkeypatch, Poisoned)
    assert Poisoned.asked[Poisoned.poison] == 2
    assert (outcome.snapshot.failed, outcome.snapshot.left) == (1, 0)
    (failed,) = (record for record in records(tmp_path / "run") if isinstance(record.outcome, Failure))
    assert isinstance(failed.outcome, Failure)
    assert failed.outcome.message == ("no answer after 3 attempts: 1 in an earlier run; HTTP 500 (2 times)")
    assert failed.attempt == 3


class Away(Watching):
    """Answers nothing for some calls, the canary included."""

    calls: ClassVar[int] = 0

    def before(self, requests: Sequence[Request]) -> None:
        self.call()

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        self.call()
        return await super().warm(prefix)

    def call(self) -> None:
        type(self).calls += 1
        if 1 < self.calls < 12:
            raise Unavailable("away")


def test_an_outage_costs_no_attempt(plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Away, "calls", 0)
    monkeypatch.setattr("fafo_run.run.server._FIRST_PROBE", 0.01)
    outcome = run(with_settings(plan, attempts=1), tmp_path / "run", monkeypatch, Away)
    assert (outcome.snapshot.completed, outcome.snapshot.failed) == (ITEMS, 0)
    assert {record.attempt for record in records(tmp_path / "run")} == {1}


# ---- items that stand twice in the queue


@pytest.mark.parametrize("first_is_lost", [False, True])
def test_what_stands_twice_in_the_queue_is_asked_for_once(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_is_lost: bool
) -> None:
    class Losing(Watching):
        latency = 0.05

        def before(self, requests: Sequence[Request]) -> None:
            if first_is_lost and self.asked[requests[0].identity] == 1:
                raise Unavailable("reset")

    maker = Maker(plan.view)
    made = [maker.make(item) for item in items(plan.view)]
    writer = QueueWriter(RunDirectory.join(tmp_path / "run"))
    writer.append([again for item in made for again in (item, item)])
    writer.append(made)
    writer.close()
    outcome = run(plan, tmp_path / "run", monkeypatch, Losing)
    assert (outcome.snapshot.completed, outcome.dropped) == (ITEMS, 0)
    assert set(Losing.asked.values()) == ({2} if first_is_lost else {1})
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.queue.depth() == 0


# ---- a service


class Stumbling(Watching):
    """Fails once, by a mistake of its own, with requests under way."""

    def before(self, requests: Sequence[Request]) -> None:
        if self.asked.total() == 2:
            raise RuntimeError("a bug")


def test_a_service_starts_a_dispatcher_anew_that_died(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listening(all_done)
    outcome = run(plan, tmp_path / "run", monkeypatch, Stumbling, listener, service=True)
    assert (outcome.status, outcome.exit_code, outcome.snapshot.completed) == ("stopped", 0, ITEMS)
    assert outcome.snapshot.in_flight == 0
    assert any("dispatcher failed" in line and "a bug" in line for line in listener.notices)


def test_a_run_that_is_no_service_ends_with_the_mistake(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run(plan, tmp_path / "run", monkeypatch, Stumbling)


def test_a_service_starts_a_producer_anew_that_died(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Maker.make_each
    died: list[int] = []

    def stumble(self: Maker, *arguments: Any, **settings: Any) -> Any:
        if not died:
            died.append(1)
            raise RuntimeError("a bug")
        return made(self, *arguments, **settings)

    monkeypatch.setattr(Maker, "make_each", stumble)
    listener = Listening(all_done)
    outcome = run(plan, tmp_path / "run", monkeypatch, Watching, listener, service=True)
    assert outcome.snapshot.completed == ITEMS
    assert any("producer failed" in line for line in listener.notices)
    assert outcome.snapshot.notice == ""


def test_an_error_of_the_store_ends_a_service(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Queue, found: Sequence[Any]) -> None:
        raise StoreError.of("the disk refuses")

    monkeypatch.setattr(Queue, "append", refuse)
    with pytest.raises(StoreError, match="refuses"):
        run(plan, tmp_path / "run", monkeypatch, Watching, service=True)


# ---- another engine than before


class Real(Watching):
    async def start(self) -> Capabilities:
        return evolve(await super().start(), engine="transformers")


def test_outcomes_of_the_fake_engine_beside_anothers_are_told(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = evolve(plan, view=evolve(plan.view, limit=2))
    fakes, real = Listening(), Listening()
    assert not run(limited, tmp_path / "run", monkeypatch, Watching, fakes).beside_fake
    outcome = run(plan, tmp_path / "run", monkeypatch, Real, real)
    assert outcome.beside_fake
    assert outcome.as_json()["beside_fake"] is True
    assert [started.beside_fake for started in (*fakes.begun, *real.begun)] == [False, True]
    assert not run(plan, tmp_path / "other", monkeypatch, Real).beside_fake


class Gone(Watching):
    """Answers nothing at all."""

    def before(self, requests: Sequence[Request]) -> None:
        raise Unavailable("gone")

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        raise Unavailable("gone")


def test_a_service_that_waits_for_its_engine_stops_cleanly(
    plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is under way, so nothing is cut short, though the next try is far away."""
    monkeypatch.setattr("fafo_run.run.server._FIRST_PROBE", 600.0)
    listener = Listening(lambda seen: "gone" in seen.notice)
    outcome = run(
        with_settings(plan, stop_within=0.1), tmp_path / "run", monkeypatch, Gone, listener, service=True
    )
    assert (outcome.status, outcome.exit_code, outcome.snapshot.completed) == ("stopped", 0, 0)
    assert outcome.snapshot.queued == ITEMS
