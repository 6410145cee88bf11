from types import SimpleNamespace
from typing import cast

import pytest
from attrs import evolve

from fafo_run.item import Failure, FailureCode, FinishReason, Output, Provenance, Record, Row, Stage
from fafo_run.run.state import RunState
from fafo_run.run.view import ClassView, ViewItem

OF = Provenance("exam", "s", "00" * 32, "m", "00" * 32, {}, "00" * 32)
OUTPUT = Record(
    bytes(16), OF, "k", 0, 1, bytes(32), (1,), ((0, 1),), 100, 128, 1, "", 0.0, 0.1,
    Output((5, 6), FinishReason("stop"), cached_tokens=70, expected_cached_tokens=80),
)  # fmt: skip
FAILED = evolve(OUTPUT, outcome=Failure(FailureCode.REJECTED, Stage.ENGINE, "no"))


def item(identity: bytes = bytes(16), source: str = "s") -> ViewItem:
    return ViewItem(
        identity, cast(ClassView, SimpleNamespace(name="exam")), Row(source, "k", {}, bytes(32), ""), 0
    )


def test_counts_and_rates_are_those_of_the_records() -> None:
    state = RunState({"exam": 10})
    state.count([OUTPUT, OUTPUT, FAILED])
    state.found_done(item(), False)
    state.found_done(item(), True)
    seen = state.snapshot(queued=4)
    assert (seen.completed, seen.failed, seen.before, seen.failed_before, seen.left) == (2, 1, 2, 1, 5)
    assert (seen.prompt_tokens, seen.cached_tokens, seen.expected_cached_tokens) == (200, 140, 160)
    assert (seen.hit_rate, seen.ceiling, seen.output_tokens) == (0.7, 0.8, 4)
    assert seen.rate > 0
    assert seen.eta is not None


def test_what_was_done_before_is_no_part_of_the_rate() -> None:
    state = RunState({"exam": 10})
    for _ in range(8):
        state.found_done(item(), False)
    assert state.snapshot(0).rate == 0
    assert state.snapshot(0).eta is None


def test_rows_that_went_meanwhile_arent_left_below_nothing() -> None:
    state = RunState({"exam": 2})
    for number in range(3):
        state.found_done(item(bytes([number]) * 16), False)
    assert state.snapshot(0).before == 2
    assert state.snapshot(0).left == 0


def test_what_this_run_recorded_isnt_counted_once_more_when_its_row_is_passed() -> None:
    """As of an item that waited, by its retry for instance, and was done before its row was reached."""
    state = RunState({"exam": 10}, is_new=lambda identity: identity == bytes(16))
    state.count([OUTPUT])
    state.found_done(item(), False)
    state.found_done(item(b"1" * 16), True)
    seen = state.snapshot(0)
    assert (seen.completed, seen.before, seen.failed_before, seen.left) == (1, 1, 1, 8)


def test_a_source_that_is_read_from_its_beginning_is_counted_anew() -> None:
    state = RunState({"exam": 10})
    for source in ("s", "other"):
        state.found_done(item(source=source), False)
        state.found_done(item(b"1" * 16, source), True)
    state.find_anew("s")
    assert (state.snapshot(0).before, state.snapshot(0).failed_before) == (2, 1)
    state.found_done(item(), False)
    assert state.snapshot(0).before == 3


def test_the_time_left_goes_by_tokens_since_classes_differ() -> None:
    state = RunState({"exam": 10, "story": 10}, {"exam": 2, "story": 200})
    state.count([OUTPUT] * 10)
    seen = state.snapshot(0)
    assert seen.eta is not None
    per_token = seen.elapsed / 20
    assert seen.eta == pytest.approx(10 * 200 * per_token, rel=0.2)


def test_failures_are_told_by_code_with_the_first_example() -> None:
    state = RunState({"exam": 10})
    state.count([FAILED, evolve(FAILED, key="other")])
    (found,) = state.snapshot(0).failures.items()
    assert found[0] == "rejected"
    assert (found[1].count, found[1].example) == (2, "exam · s · k: no")


def test_a_retry_takes_back_the_failure_before_it() -> None:
    state = RunState({"exam": 3})
    state.found_done(item(), True)
    state.count([evolve(FAILED, identity=b"1" * 16)])
    assert (state.snapshot(0).failed, state.snapshot(0).failed_before) == (1, 1)
    state.count([evolve(OUTPUT, retry=1), evolve(FAILED, identity=b"1" * 16, retry=1)])
    seen = state.snapshot(0)
    assert (seen.completed, seen.failed, seen.before, seen.failed_before, seen.left) == (1, 1, 0, 0, 1)
    state.count([evolve(OUTPUT, identity=b"1" * 16, retry=2)])
    assert (state.snapshot(0).completed, state.snapshot(0).failed) == (2, 0)


def test_what_several_wait_for_is_told_together_until_each_goes_on() -> None:
    state = RunState({"exam": 3})
    state.wait_for("engine", "no answers")
    state.wait_for("source a", "isn't there")
    assert state.snapshot(0).notice == "no answers; isn't there"
    state.wait_for("engine", "")
    state.wait_for("engine", "")
    assert state.snapshot(0).notice == "isn't there"
