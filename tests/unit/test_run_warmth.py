"""When a prefix is warmed: once, after an outage, and when it was seen to be gone; never again and again."""

from __future__ import annotations

from fafo_run.run.warmth import Warmth, Why

A, B = "a" * 64, "b" * 64


def test_each_prefix_is_warmed_once() -> None:
    warmth = Warmth()
    assert not warmth.is_warm(A) and warmth.why(A) is Why.FIRST
    warmth.warmed(A)
    assert warmth.is_warm(A) and not warmth.is_warm(B)


def test_an_outage_makes_all_cold() -> None:
    warmth = Warmth()
    warmth.warmed(A)
    warmth.forget()
    assert not warmth.is_warm(A) and warmth.why(A) is Why.RESTART
    assert warmth.why(B) is Why.FIRST


def test_a_prefix_that_was_hit_and_then_missed_has_gone() -> None:
    warmth = Warmth()
    warmth.warmed(A)
    epoch = warmth.epoch(A)
    assert not warmth.seen(A, epoch, whole=True)
    assert warmth.seen(A, epoch, whole=False)
    assert not warmth.is_warm(A) and warmth.why(A) is Why.EVICTED
    assert not warmth.seen(A, epoch, whole=False), "told once"


def test_what_was_sent_before_a_warm_up_says_nothing_about_it() -> None:
    warmth = Warmth()
    warmth.warmed(A)
    old = warmth.epoch(A)
    warmth.seen(A, old, whole=True)
    warmth.seen(A, old, whole=False)
    warmth.warmed(A)
    warmth.seen(A, warmth.epoch(A), whole=True)
    assert not warmth.seen(A, old, whole=False) and warmth.is_warm(A)


def test_warm_ups_that_help_nobody_arent_repeated() -> None:
    """A cache that is too small, or keeps no such prefixes: each warm-up would be followed by a miss."""
    warmth = Warmth()
    warmth.warmed(A)
    assert not warmth.seen(A, warmth.epoch(A), whole=False)
    assert warmth.is_warm(A)
