"""The completer's housekeeping: an item whose lease has ended is handed out again, and recorded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafo_run.log.directory import RunDirectory
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run import completer
from fafo_run.run.completer import Completer
from fafo_run.run.state import RunState
from tests.log_nouns import item, record


def test_an_item_whose_lease_has_ended_is_handed_out_again_and_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer, "_COLLECT", 0.0)
    now = [0.0]
    with RunDirectory.own(tmp_path / "run") as directory:
        queue = Queue(directory, lease=60.0, monotonic=lambda: now[0])
        results = Results(directory)
        role = Completer(queue, results, RunState({}))
        queue.append([item(1)])
        (first,) = queue.claim(9)
        now[0] = 59.0
        role._keep_house()
        assert queue.claim(9) == []
        now[0] = 60.0
        role._keep_house()
        (second,) = queue.claim(9)
        assert (second.item, second.attempt) == (first.item, 2)
        role.start()
        role.record(record(1), first)
        role.record(record(1), second)
        role.finish()
        assert role.dropped == 1
        assert queue.depth() == 0
        queue.close(clean=True)
        results.close(clean=True)


def test_an_attempt_without_an_answer_waits_anew(tmp_path: Path) -> None:
    with RunDirectory.own(tmp_path / "run") as directory:
        queue, results = Queue(directory), Results(directory)
        role = Completer(queue, results, RunState({}))
        queue.append([item(1), item(2)])
        first, second = queue.claim(9)
        role.again(first)
        role.record(record(2), second)
        assert not role.idle
        role.start()
        role.finish()
        assert role.idle
        (waiting,) = queue.claim(9)
        assert (waiting.item.key, waiting.item.attempts) == (first.item.key, 1)
        queue.close(clean=True)
        results.close(clean=True)


def test_a_record_that_is_dropped_isnt_counted(tmp_path: Path) -> None:
    with RunDirectory.own(tmp_path / "run") as directory:
        queue, results = Queue(directory), Results(directory)
        state = RunState({"judge": 1})
        role = Completer(queue, results, state)
        queue.append([item(1)])
        (claim,) = queue.claim(9)
        role.start()
        role.record(record(1), claim)
        role.record(record(1), claim)
        role.finish()
        assert (state.snapshot(0).completed, role.dropped) == (1, 1)
        queue.close(clean=True)
        results.close(clean=True)
