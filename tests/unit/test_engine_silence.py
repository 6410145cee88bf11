"""How long a request may take before it counts as lost."""

from __future__ import annotations

from fafo_run.engines.silence import Silence


def test_only_the_declared_bound_holds_before_the_first_answer() -> None:
    assert Silence(600.0).allowed(650, 32) == 600.0


def test_every_request_has_a_minute() -> None:
    it = Silence(600.0)
    it.answered(650, 32, 0.1)
    assert it.allowed(650, 32) == 60.0


def test_nothing_goes_beyond_the_declared_bound() -> None:
    it = Silence(30.0)
    assert it.allowed(650, 32) == 30.0
    it.answered(650, 32, 25.0)
    assert it.allowed(10**6, 10**5) == 30.0


def test_it_grows_with_the_prompt_and_with_the_tokens_asked_for() -> None:
    it = Silence(3600.0)
    it.answered(640, 100, 12.1)  # 0.1 s for each unit of length
    assert it.allowed(640, 100) == 121.0
    assert it.allowed(640, 200) > it.allowed(640, 100)
    assert it.allowed(6400, 100) > it.allowed(640, 100)


def test_answers_that_end_early_are_not_taken_for_fast_ones() -> None:
    it = Silence(36_000.0)
    it.answered(0, 9, 1.0)  # of many tokens that were asked for, only 9 came
    assert it.allowed(0, 4095) == 4096.0


def test_the_slowest_of_late_counts_and_fades() -> None:
    it = Silence(36_000.0)
    it.answered(0, 99, 100.0)
    slow = it.allowed(0, 99)
    assert slow == 1000.0
    it.answered(0, 99, 10.0)
    assert 990.0 < it.allowed(0, 99) < slow
    for _ in range(2000):
        it.answered(0, 99, 10.0)
    assert round(it.allowed(0, 99)) == 100
