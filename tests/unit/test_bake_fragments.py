"""Runs that prefixes have in common at different places."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.bake.fragments import LEAST, Fragment, fragments

drawn = random.Random(1)
COMMON = tuple(drawn.randrange(50_000) for _ in range(100))
A, B, C = (tuple(drawn.randrange(50_000) for _ in range(40)) for _ in range(3))


def test_a_run_after_different_beginnings() -> None:
    assert fragments(A + COMMON, {"b": B[:7] + COMMON + C}) == (Fragment(40, 140, ("b",)),)


def test_what_stands_at_the_common_beginning_is_no_fragment() -> None:
    assert fragments(COMMON + A, {"b": COMMON + B}) == ()
    assert fragments(COMMON, {"b": COMMON}) == ()
    assert fragments(A, {"b": B, "c": ()}) == ()


def test_a_run_behind_the_common_beginning() -> None:
    assert fragments(A + B + COMMON, {"b": A + C + COMMON}) == (Fragment(80, 180, ("b",)),)


def test_short_runs_are_no_news() -> None:
    assert fragments(A + COMMON[: LEAST - 1] + B, {"b": C + COMMON[: LEAST - 1]}) == ()
    assert fragments(A + COMMON[:LEAST] + B, {"b": C + COMMON[:LEAST]}) == (Fragment(40, 40 + LEAST, ("b",)),)


def test_nearly_the_same_run_of_several_classes_is_one_fragment() -> None:
    others = {
        "b": B + COMMON,
        "c": C + COMMON[2:],
        "d": C[:3] + COMMON[:-3],
        "e": B[:1] + COMMON[40:75],
    }
    assert fragments(A + COMMON, others) == (Fragment(42, 137, ("b", "c", "d")), Fragment(80, 115, ("e",)))


def test_ids_beyond_two_bytes_are_found_at_their_own_places_only() -> None:
    # The bytes of these stand in the others shifted by one.
    shifted = tuple((id_ << 8) & 0xFFFFFFFF for id_ in range(1, 60))
    assert fragments((9, *range(1, 60)), {"b": (8, 8, *shifted)}) == ()


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(LEAST, 100), st.integers(0, 68))
def test_every_run_that_is_long_enough_is_found(before: int, other: int, length: int, at: int) -> None:
    run = COMMON[at : at + length]
    prefix = A[:30] + B[:before][:40] + run + C
    found = fragments(prefix, {"b": C[::-1][:other] + run + A})
    if len(run) < LEAST:
        assert all(fragment.end - fragment.begin < length for fragment in found)
        return
    begin = prefix.index(run[0])
    assert any(one.begin <= begin and begin + len(run) <= one.end for one in found)
