"""The sums of a verification: by hour, misses, warm-ups."""

from __future__ import annotations

import pytest
from attrs import evolve
from msgspec.structs import replace as evolve_struct

from fafo_run.item import Failure, FailureCode, FinishReason, Output, Provenance, Record, Stage
from fafo_run.run.evidence import AnyEvent
from fafo_run.run.server import IN_PROCESS
from fafo_run.verify.lives import Losses, lives_of
from fafo_run.verify.records import RecordSums
from fafo_run.verify.sums import Hits, Misses, WarmUps
from fafo_run.verify.warming import warm_ups
from tests.log_nouns import record
from tests.unit.verify_kit import (
    EXAM,
    OTHER,
    PREFIXES,
    URL,
    missed,
    returned,
    started,
    warmed,
)

HOUR = 1764518400.0
"""2025-11-30, 16:00 UTC."""
SAID = evolve(record(1).provenance, class_name="exam", artifact="a" * 64)


def output(
    cached: int, ceiling: int, *, at: float = HOUR, server: str = URL, said: Provenance = SAID
) -> Record:
    outcome = Output((5, 6), FinishReason("stop"), cached, ceiling)
    return evolve(record(1), provenance=said, prompt_tokens=120, server=server, started=at, outcome=outcome)


def sums(*records: Record, events: tuple[AnyEvent, ...] = ()) -> RecordSums:
    found = RecordSums(lambda said: said.class_name, Losses(events).why)
    for one in records:
        found.see(one)
    return found


def test_sums_by_the_hour_in_which_items_were_sent() -> None:
    found = sums(
        output(100, 100, at=HOUR + 3600),
        output(100, 100, at=HOUR + 3599.9),
        output(40, 100, at=HOUR),
        output(110, 100, at=HOUR, server=OTHER),
        output(0, 0, at=HOUR - 0.1),
    ).by_hour()
    assert list(found) == ["2025-11-30T15:00Z", "2025-11-30T16:00Z", "2025-11-30T17:00Z"]
    assert found["2025-11-30T16:00Z"] == Hits(3, 360, 250, 300, 240)
    assert found["2025-11-30T17:00Z"] == Hits(1, 120, 100, 100, 100)


def test_failures_and_superseded_work_are_in_no_hour() -> None:
    found = RecordSums(lambda said: None, Losses([]).why)
    found.see(output(1, 1))
    assert found.by_hour() == {}
    failure = evolve(output(1, 1), outcome=Failure(FailureCode.TOO_LONG, Stage.PROMPT, "long"))
    assert sums(failure).by_hour() == {}


def test_misses_by_class_and_server() -> None:
    other = evolve(SAID, class_name="child")
    found = sums(
        output(96, 100), output(64, 100), output(100, 100), output(0, 100, server=""),
        output(99, 100, said=other), output(101, 100),
    ).misses()  # fmt: skip
    assert found == {
        ("exam", URL): Misses(items=2, tokens=40, longest=36, unit=32),
        ("exam", IN_PROCESS): Misses(items=1, tokens=100, longest=100),
        ("child", URL): Misses(items=1, tokens=1, longest=1, unit=99),
    }


def test_a_miss_is_due_to_why_its_prefix_was_warmed_the_next_time() -> None:
    events = (
        started(), warmed(HOUR), missed(HOUR + 10), warmed(HOUR + 11, why="evicted"),
        returned(HOUR + 20, restarted=True), warmed(HOUR + 21, why="restart"),
        missed(HOUR + 30),
    )  # fmt: skip
    whys = Losses(events)
    found = [whys.why(URL, "a" * 64, HOUR + after) for after in (1, 9, 12, 20, 22, 29, 31)]
    assert found == ["evicted", "evicted", "restart", "restart", "evicted", "evicted", None]
    assert whys.why(OTHER, "a" * 64, HOUR + 9) is None
    assert whys.why(URL, "b" * 64, HOUR + 9) is None
    seen = sums(
        output(0, 100, at=HOUR + 9),
        output(50, 100, at=HOUR + 12),
        output(0, 100, at=HOUR + 40),
        events=events,
    )
    assert seen.misses() == {
        ("exam", URL): Misses(items=3, tokens=250, longest=100, unit=50, restart=50, evicted=100)
    }


# ---- warm-ups


def test_a_warm_up_can_share_what_was_warmed_before_it_on_its_rank() -> None:
    events = [
        started(),
        warmed(1.0),
        warmed(2.0, "child", cached_tokens=60),
        warmed(3.0, rank=1),
        warmed(4.0, why="evicted", cached_tokens=60),
    ]
    found = warm_ups(lives_of(list(events)), PREFIXES)
    assert found == WarmUps(4, 400, 120, 0 + 60 + 0 + 99, {"first": 3, "evicted": 1})
    assert found.as_json() == {
        "count": 4, "prompt_tokens": 400, "cached_tokens": 120, "ceiling_tokens": 159, "hit_rate": 0.3,
        "by_why": {"first": 3, "evicted": 1},
    }  # fmt: skip


def test_a_warm_up_shares_whole_pages_with_what_its_process_holds() -> None:
    events = [
        started(page_size=16),
        warmed(1.0),
        warmed(2.0, "child"),
        returned(5.0, restarted=True),
        # A new process holds nothing, and its pages are those of the one before.
        warmed(6.0, why="restart"),
        warmed(7.0, "child", why="restart"),
    ]
    assert warm_ups(lives_of(list(events)), PREFIXES).ceiling_tokens == 48 + 48


@pytest.mark.parametrize(("page", "ceiling"), [(1, 99), (16, 96), (64, 64), (128, 0)])
def test_a_prefix_that_is_there_whole_lacks_its_last_token(page: int, ceiling: int) -> None:
    """Two classes with one prefix: the second finds all of it, but the token whose answer is wanted."""
    events = [started(page_size=page), warmed(1.0), warmed(2.0, "child")]
    assert warm_ups(lives_of(list(events)), dict.fromkeys(PREFIXES, EXAM)).ceiling_tokens == ceiling


@pytest.mark.parametrize("order", [("exam", "child"), ("child", "exam")])
def test_a_prefix_that_another_one_begins_with_is_shared_in_either_order(order: tuple[str, str]) -> None:
    within = {"a" * 64: EXAM, "b" * 64: EXAM[:60]}
    lengths = {"exam": 100, "child": 60}
    events = [started(), *(warmed(at, name, prompt_tokens=lengths[name]) for at, name in enumerate(order))]
    assert warm_ups(lives_of(list(events)), within).ceiling_tokens == {"exam": 60, "child": 59}[order[1]]


def test_of_several_that_were_warmed_before_the_longest_beginning_counts() -> None:
    third = {"c" * 64: (*EXAM[:80], *range(300, 320))}
    event = evolve_struct(warmed(3.0), artifact="c" * 64)
    for before in (("exam", "child"), ("child", "exam")):
        events = [started(), *(warmed(at, name) for at, name in enumerate(before)), event]
        assert warm_ups(lives_of(list(events)), PREFIXES | third).ceiling_tokens == 60 + 80


def test_what_another_server_another_rank_or_an_earlier_run_has_is_nothing_to_a_warm_up() -> None:
    events = [
        started(), started(server=OTHER), warmed(1.0), warmed(2.0, rank=1), warmed(2.0, server=OTHER),
        started(9.0, session="t"), evolve_struct(warmed(10.0), session="t"),
    ]  # fmt: skip
    assert warm_ups(lives_of(list(events)), PREFIXES) == WarmUps(4, 400, 0, 0, {"first": 4})


def test_warm_ups_of_older_prompts_arent_counted_nor_what_they_left() -> None:
    assert warm_ups(lives_of([started(), warmed(1.0)]), {"c" * 64: EXAM}) == WarmUps()
    found = warm_ups(lives_of([started(), warmed(1.0), warmed(2.0, "child")]), {"b" * 64: PREFIXES["b" * 64]})
    assert found == WarmUps(1, 100, 0, 0, {"first": 1})
    assert WarmUps().as_json()["hit_rate"] is None
