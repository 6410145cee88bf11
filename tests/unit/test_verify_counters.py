"""The run's sums are held against the servers' counters, life by life."""

from __future__ import annotations

import pytest

from fafo_run.engines.base import Counters
from fafo_run.run.evidence import AnyEvent, Sums
from fafo_run.verify.counters import Agreement, Comparison, compare
from fafo_run.verify.lives import lives_of
from tests.unit.verify_kit import NOTHING, OTHER, URL, ended, returned, started

OWN = Sums(101, 12_000, 10_000)


def one(events: list[AnyEvent], server: str = URL) -> Comparison:
    return compare(lives_of(events))[server]


def test_what_the_server_counted_before_the_run_is_none_of_it() -> None:
    found = one(
        [started(counters=Counters(500, 400, 9, 0, 3)), ended(9.0, OWN, Counters(12_500, 10_400, 110, 0, 10))]
    )
    assert found.agreement is Agreement.AGREE
    assert found.as_json() == {
        "agreement": "agree",
        "compared": 1,
        "unknown": 0,
        "run": {"requests": 101, "prompt_tokens": 12_000, "cached_tokens": 10_000, "lost": 0},
        "server": {
            "requests": 101, "prompt_tokens": 12_000, "cached_tokens": 10_000, "evicted_tokens": 7,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "cached", "agreement"),
    [
        (12_060, 10_000, Agreement.AGREE),
        (12_061, 10_000, Agreement.MORE),
        (12_000, 10_051, Agreement.MORE),
        (11_940, 9_950, Agreement.AGREE),
        (11_939, 10_000, Agreement.FEWER),
        (12_000, 9_949, Agreement.FEWER),
    ],
)
def test_half_a_percent_is_agreement(prompt: int, cached: int, agreement: Agreement) -> None:
    found = one([started(counters=NOTHING), ended(9.0, OWN, Counters(prompt, cached, 101))])
    assert found.agreement is agreement


@pytest.mark.parametrize(
    ("lost", "agreement"), [(4, Agreement.LOST), (3, Agreement.MORE), (0, Agreement.MORE)]
)
def test_lost_requests_explain_as_many_requests(lost: int, agreement: Agreement) -> None:
    own = Sums(101, 12_000, 10_000, lost)
    found = one([started(counters=NOTHING), ended(9.0, own, Counters(12_480, 10_400, 105))])
    assert found.agreement is agreement


def test_counters_that_arent_told_compare_nothing() -> None:
    assert one([started(), ended(9.0, OWN)]) == Comparison(unknown=1)
    assert one([started(counters=NOTHING)]) == Comparison(unknown=1)
    assert one([started(counters=NOTHING), ended(9.0, OWN)]).agreement is Agreement.UNKNOWN


def test_a_server_that_counts_anew_was_restarted_unseen() -> None:
    found = one([started(counters=Counters(500, 400, 9)), ended(9.0, OWN, Counters(120, 100, 1))])
    assert (found.agreement, found.unseen) == (Agreement.UNKNOWN, 1)


def test_lives_of_a_server_are_summed_and_the_worst_counts() -> None:
    events = [
        started(counters=NOTHING),
        # It died: what it had counted is gone with it.
        returned(5.0, restarted=True, counters=Counters(0, 0, 0)),
        ended(9.0, OWN, Counters(12_000, 10_000, 101)),
        started(20.0, session="t", counters=Counters(12_000, 10_000, 101, 0, 4)),
        ended(29.0, OWN, Counters(30_000, 20_000, 205, 0, 9), session="t"),
        started(server=OTHER, counters=NOTHING),
        ended(9.0, OWN, Counters(12_000, 10_000, 101), server=OTHER),
    ]
    found = one(events)
    assert (found.agreement, found.compared, found.unknown) == (Agreement.MORE, 2, 1)
    assert found.run == Sums(202, 24_000, 20_000)
    assert (found.server_prompt_tokens, found.server_requests, found.evicted_tokens) == (30_000, 205, 5)
    assert one(events, OTHER).agreement is Agreement.AGREE


def test_a_return_of_the_same_process_goes_on_counting() -> None:
    events = [
        started(counters=NOTHING),
        returned(5.0, restarted=False, counters=Counters(6_000, 5_000, 50)),
        ended(9.0, OWN, Counters(12_000, 10_000, 101)),
    ]
    assert one(events).agreement is Agreement.AGREE
