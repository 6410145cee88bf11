"""Each cause of a hit rate that is below is named when the evidence has it, with numbers, and else not."""

from __future__ import annotations

import pytest

from fafo_run.engines.base import Counters
from fafo_run.run.evidence import AnyEvent, Excluded, Sums
from fafo_run.verify.causes import explain, no_ceiling
from fafo_run.verify.notes import notes
from fafo_run.verify.report import VERDICTS, Cause, Finding, Verdict, verdict_of
from fafo_run.verify.sums import Hits, Misses
from tests.unit.verify_kit import (
    NOTHING,
    OTHER,
    URL,
    ended,
    event,
    known,
    missed,
    returned,
    started,
    warmed,
)

ALL = Misses(items=100, tokens=10_000, longest=100)
"""Every item of `exam` found nothing."""
SOME = Misses(items=3, tokens=300, longest=100)


def told(events: list[AnyEvent], misses: Misses = ALL, **said: object) -> list[tuple[Cause, str]]:
    found = explain("exam", known(events, {("exam", URL): misses}, **said))  # type: ignore[arg-type]
    return [(finding.cause, finding.detail) for finding in found]


def causes(events: list[AnyEvent], misses: Misses = ALL, **said: object) -> list[Cause]:
    return [cause for cause, _ in told(events, misses, **said)]


def test_a_cache_that_is_off() -> None:
    misses = Misses(items=100, tokens=10_000, longest=100, evicted=10_000)
    ((cause, detail),) = told([started(prefix_cache=False), warmed(3.0, why="evicted")], misses)
    assert cause is Cause.RADIX_OFF
    assert detail.startswith(f"exam: 100 items lack 10000 tokens at {URL}: it was started without its prefix")
    assert "--disable-radix-cache" in detail


def test_a_cache_that_was_off_in_one_session_of_two() -> None:
    events: list[AnyEvent] = [started(prefix_cache=False), started(10.0, session="t")]
    ((cause, detail),) = told(events)
    assert cause is Cause.RADIX_OFF
    assert "in 1 of 2 of its lives" in detail


def test_a_server_that_came_back_cold() -> None:
    misses = Misses(items=3, tokens=300, longest=100, restart=300)
    events = [started(), warmed(1.0), returned(1764518400.0, restarted=True), warmed(1764518401.0)]
    ((cause, detail),) = told(events, misses)
    assert cause is Cause.COLD_RESTART
    assert (
        "300 of them because it came back with an empty cache (once, first at 2025-11-30 16:00:00 UTC)"
        in detail
    )
    assert causes([started(), warmed(1.0), returned(5.0, restarted=False)], SOME) == [Cause.NOT_EXPLAINED]


def test_a_restart_that_only_the_counters_show() -> None:
    events = [started(counters=Counters(500, 0, 9)), ended(9.0, Sums(100, 12_000), Counters(300, 0, 3))]
    assert causes(events, SOME) == [Cause.COLD_RESTART]


def test_a_cache_that_is_too_small() -> None:
    misses = Misses(items=40, tokens=4_000, longest=100, evicted=3_900)
    events = [
        started(cache_tokens=180, counters=NOTHING),
        warmed(1.0),
        warmed(2.0, "child"),
        missed(3.0),
        warmed(4.0, why="evicted"),
        ended(9.0, Sums(103, 12_300, 8_000), Counters(12_300, 8_000, 103, 0, 3_456)),
    ]
    ((cause, detail),) = told(events, misses)
    assert cause is Cause.EVICTED
    assert "40 items lack 4000 tokens" in detail and "3900 of them" in detail
    # 100 tokens of one, 40 more of the other, and 8 prompts of 20 tokens beside the prefix, 10 more come out.
    assert "its cache holds 180 tokens; 2 prefixes have 140, and 8 prompts" in detail
    assert "up to 240 more" in detail
    assert "it dropped 3456 tokens" in detail
    assert "prefixes were warmed again once" in detail


def test_an_eviction_without_counters_or_size_is_named_all_the_same() -> None:
    misses = Misses(items=1, tokens=100, longest=100, evicted=100)
    assert causes([started(), warmed(1.0), missed(3.0)], misses) == [Cause.EVICTED]


@pytest.mark.parametrize(
    ("size", "dropped", "cause"),
    [
        (180, 5, Cause.EVICTED),
        (379, 5, Cause.EVICTED),
        (380, 5, Cause.NOT_EXPLAINED),
        (180, None, Cause.NOT_EXPLAINED),
        (None, 5, Cause.NOT_EXPLAINED),
        # So much that everything that items lack can be among it.
        (380, 10_000, Cause.EVICTED),
        (380, 9_999, Cause.NOT_EXPLAINED),
        (None, 10_000, Cause.EVICTED),
    ],
)
def test_a_cache_that_never_held_a_prefix_is_too_small_if_it_dropped_any(
    size: int | None, dropped: int | None, cause: Cause
) -> None:
    """Then nothing is warmed again, since that would be as futile: only sizes and counters tell."""
    events = [
        started(cache_tokens=size, counters=NOTHING),
        warmed(1.0),
        warmed(2.0, "child"),
        ended(9.0, Sums(103, 12_300, 0), Counters(12_300, 0, 103, 0, dropped)),
    ]
    assert causes(events) == [cause]


@pytest.mark.parametrize(("size", "cause"), [(100_000, Cause.FLUSHED), (180, Cause.EVICTED)])
def test_a_cache_that_had_room_and_dropped_nothing_was_emptied(size: int, cause: Cause) -> None:
    misses = Misses(items=1, tokens=100, longest=100, evicted=100)
    after = Counters(12_300, 8_000, 103)
    events = [
        started(cache_tokens=size, counters=NOTHING),
        warmed(1.0),
        missed(3.0),
        ended(9.0, Sums(103, 12_300, 8_000), after),
    ]
    assert causes(events, misses) == [cause]


def test_a_cache_with_room_that_dropped_tokens_wasnt_emptied() -> None:
    misses = Misses(items=1, tokens=100, longest=100, evicted=100)
    after = Counters(12_300, 8_000, 103, 0, 50)
    events = [
        started(cache_tokens=100_000, counters=NOTHING),
        warmed(1.0),
        ended(9.0, Sums(103, 12_300, 8_000), after),
    ]
    assert causes(events, misses) == [Cause.EVICTED]


def test_pages_that_are_larger_than_the_server_says() -> None:
    misses = Misses(items=100, tokens=400, longest=4, unit=96)
    ((cause, detail),) = told([started()], misses)
    assert cause is Cause.PAGE_SIZE
    assert "whole pages of 32" in detail and "none more than 4" in detail


@pytest.mark.parametrize(("longest", "unit"), [(4, 0), (4, 97), (33, 96), (1, 1)])
def test_misses_that_no_page_explains(longest: int, unit: int) -> None:
    misses = Misses(items=100, tokens=400, longest=longest, unit=unit)
    assert causes([started()], misses) == [Cause.NOT_EXPLAINED]


def test_another_tenant() -> None:
    events = [
        started(counters=Counters(1_000, 0, 10)),
        ended(9.0, Sums(101, 12_100, 9_000), Counters(50_000, 9_000, 400)),
    ]
    ((cause, detail),) = told(events, SOME)
    assert cause is Cause.ANOTHER_TENANT
    assert detail == (
        f"exam: {URL} counted 49000 prompt tokens (9000 cached) in 390 requests, "
        "the run had 12100 (9000) in 101 from it"
    )


def test_requests_that_were_lost_are_no_other_tenant() -> None:
    events = [
        started(counters=NOTHING),
        ended(9.0, Sums(101, 12_100, 9_000, lost=3), Counters(12_460, 9_200, 104)),
    ]
    assert causes(events, SOME) == [Cause.NOT_EXPLAINED]
    events[1] = ended(9.0, Sums(101, 12_100, 9_000, lost=2), Counters(12_460, 9_200, 104))
    assert causes(events, SOME) == [Cause.ANOTHER_TENANT]


def test_an_eviction_by_another_tenant_names_both() -> None:
    misses = Misses(items=1, tokens=100, longest=100, evicted=100)
    events = [
        started(counters=NOTHING),
        warmed(1.0),
        missed(3.0),
        ended(9.0, Sums(101, 12_100, 9_000), Counters(50_000, 9_000, 400, 0, 7)),
    ]
    assert causes(events, misses) == [Cause.EVICTED, Cause.ANOTHER_TENANT]


def test_drift_of_prompts_or_model() -> None:
    ((cause, detail),) = told([started()], SOME, stale=frozenset({"exam"}))
    assert cause is Cause.DRIFT and "build/" in detail
    ((cause, detail),) = told([started(model="m"), started(5.0, session="t", model="n")], SOME)
    assert cause is Cause.DRIFT and "m and n" in detail
    assert causes([started()], SOME, stale=frozenset({"child"})) == [Cause.NOT_EXPLAINED]


def test_what_nothing_explains_says_whether_anything_is_known() -> None:
    ((cause, detail),) = told([], SOME)
    assert cause is Cause.NOT_EXPLAINED and "servers.jsonl has nothing of it" in detail
    ((cause, detail),) = told([started(), warmed(1.0), ended(2.0)], SOME)
    assert cause is Cause.NOT_EXPLAINED and "explains nothing" in detail


def test_each_server_is_explained_by_its_own_evidence() -> None:
    events = [started(prefix_cache=False), started(server=OTHER)]
    both = {("exam", URL): ALL, ("exam", OTHER): SOME, ("child", OTHER): SOME}
    found = list(explain("exam", known(events, both)))
    assert [finding.cause for finding in found] == [Cause.RADIX_OFF, Cause.NOT_EXPLAINED]
    assert OTHER in found[1].detail


# ---- nothing could be cached


def test_pages_that_no_prefix_fills() -> None:
    (found,) = no_ceiling(known([started(page_size=128)]))
    assert found.cause is Cause.PAGE_SIZE
    assert found.detail == f"{URL} caches whole pages of 128 tokens, and the longest prefix has 100"
    assert list(no_ceiling(known([started()]))) == []
    assert [found.cause for found in no_ceiling(known([started(prefix_cache=False)]))] == [Cause.RADIX_OFF]


# ---- notes


def noted(events: list[AnyEvent], told: frozenset[Cause] = frozenset()) -> list[Cause]:
    return [found.cause for found in notes(known(events), told)]


def test_what_is_seen_and_breaks_no_promise_is_a_note() -> None:
    assert noted([started(), warmed(1.0), ended(2.0)]) == []
    assert noted([started(page_size=16)]) == [Cause.PAGE_SIZE]
    assert noted([started(page_size=20)]) == []
    assert noted([started(), returned(3.0, restarted=True)]) == [Cause.COLD_RESTART]
    assert noted([started(), warmed(1.0), warmed(3.0, why="evicted")]) == [Cause.EVICTED]
    assert noted([started(prefix_cache=False)]) == [Cause.RADIX_OFF]
    assert noted([started(), event(Excluded, 3.0, reason="another model")]) == [Cause.DRIFT]
    more = [started(counters=NOTHING), ended(2.0, Sums(1, 120, 0), Counters(9_000, 0, 90))]
    assert noted(more) == [Cause.ANOTHER_TENANT]
    assert noted(more, frozenset({Cause.ANOTHER_TENANT})) == []


def test_a_note_on_pages_says_what_each_item_pays() -> None:
    (found,) = notes(known([started(page_size=16)]), ())
    assert found.detail == (
        f"exam: 4 of its prefix's 100 tokens are computed for each item, since {URL} caches whole pages of 16"
    )


# ---- verdicts


def test_explanations_decide_nothing() -> None:
    explaining = [cause for cause in Cause if cause not in VERDICTS]
    assert Cause.RADIX_OFF in explaining and Cause.NOT_EXPLAINED in explaining
    assert verdict_of([Finding(cause, "") for cause in explaining]) is Verdict.OK
    assert verdict_of([Finding(Cause.NO_CEILING, ""), Finding(Cause.PAGE_SIZE, "")]) is Verdict.CANNOT_TELL
    assert verdict_of([Finding(Cause.NO_RESULTS, ""), Finding(Cause.HIT_RATE, "")]) is Verdict.BELOW


def test_hits_without_items_have_no_rates() -> None:
    assert (Hits().hit_rate, Hits().ceiling, Hits().ratio) == (None, None, None)
