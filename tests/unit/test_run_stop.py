"""A run of which too much fails or is empty ends itself: when, and what it says."""

from __future__ import annotations

import pytest

from fafo_build.errors import ExitCode
from fafo_build.project.declaration import StopWhen
from fafo_run.item import FailureCode
from fafo_run.run.state import ClassCount, Failures, Snapshot
from fafo_run.run.stop import LEAST, Stop


def snapshot(completed: int, failed: int = 0, empty: int = 0, before: int = 0, **codes: int) -> Snapshot:
    return Snapshot(
        by_class={"ask": ClassCount(10_000_000, before, before, completed, failed)},
        queued=5, in_flight=3, prompt_tokens=0, cached_tokens=0, expected_cached_tokens=0, output_tokens=0,
        finish_reasons={}, empty=empty, rate=1.0, eta=None, notice="", elapsed=1.0,
        failures={code: Failures(count, f"ask · facts · 7: {code} it is") for code, count in codes.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "seen", "ends"),
    [
        (StopWhen(), snapshot(0, 9_000, row_invalid=9_000), False),
        (StopWhen(failed=0.05), snapshot(LEAST - 11, 10, row_invalid=10), False),
        (StopWhen(failed=0.05), snapshot(0, LEAST - 1, row_invalid=LEAST - 1), False),
        (StopWhen(failed=0.05), snapshot(0, LEAST, row_invalid=LEAST), True),
        (StopWhen(failed=0.05), snapshot(9_500, 500, row_invalid=500), False),
        (StopWhen(failed=0.05), snapshot(9_500, 501, row_invalid=501), True),
        (StopWhen(failed=0.0), snapshot(9_500), False),
        (StopWhen(failed=0.0), snapshot(9_500, 1, too_long=1), True),
        (StopWhen(failed=0.05), snapshot(LEAST, before=100_000), False),
        (StopWhen(failed=0.05), snapshot(9_500, empty=9_500), False),
        (StopWhen(empty=0.2), snapshot(0, 9_000, row_invalid=9_000), False),
        (StopWhen(empty=0.2), snapshot(800, 200, 200, row_invalid=200), False),
        (StopWhen(empty=0.2), snapshot(800, 200, 201, row_invalid=200), True),
    ],
)
def test_a_share_is_exceeded_by_enough_outcomes_of_this_run(
    rule: StopWhen, seen: Snapshot, ends: bool
) -> None:
    stop = Stop(rule)
    assert stop.reached(seen) is ends
    assert (stop.error is not None) is ends


def test_it_names_the_commonest_code_and_what_to_do() -> None:
    stop = Stop(StopWhen(failed=0.05))
    assert stop.reached(snapshot(900, 100, too_long=40, row_invalid=60))
    assert stop.error is not None
    (problem,) = stop.error.problems
    assert problem.field == "run.stop_when.failed"
    assert problem.message == (
        "100 of this run's 1000 outcomes are failures, more than 0.05 of them; "
        "mostly row_invalid (60), such as ask · facts · 7: row_invalid it is"
    )
    assert "mend" in (problem.cure or "")
    assert stop.error.exit_code is ExitCode.USER_ERROR


def test_it_says_what_it_stopped_for_though_the_rest_went_well() -> None:
    stop = Stop(StopWhen(empty=0.2))
    assert stop.reached(snapshot(1_000, 0, 300))
    assert stop.reached(snapshot(2_000, 0, 300))
    assert "300 of this run's 1000 outcomes are empty, more than 0.2 " in str(stop.error)


@pytest.mark.parametrize("code", FailureCode)
def test_the_cure_fits_the_code(code: FailureCode) -> None:
    """A retry helps those alone that are the same items when their cause is mended."""
    stop = Stop(StopWhen(failed=0.5))
    stop.reached(snapshot(0, LEAST, **{code.value: LEAST}))
    assert stop.error is not None
    (problem,) = stop.error.problems
    assert code.value in problem.message
    assert ("fafo retry" in (problem.cure or "")) is (
        code.value in {"token_out_of_vocabulary", "answer_invalid", "rejected", "attempts_exhausted"}
    )
