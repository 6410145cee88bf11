"""Admission: a server that says no gets less, at once; one that answers gets more again, little by little."""

from __future__ import annotations

import pytest
from attrs import define

from fafo_run.engines.base import Load
from fafo_run.run.room import WAITING, Room


@define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_room_is_what_isnt_taken() -> None:
    room = Room(3)
    assert room.free == 3
    room.taken = 2
    assert room.free == 1
    room.taken = 5
    assert room.free == 0, "more than the bound may be under way when the bound has shrunk"


def test_a_refusal_halves_and_pauses_and_answers_widen_again() -> None:
    clock = Clock()
    room = Room(64, clock)
    room.taken = 40
    room.refused()
    assert (room.limit, room.free) == (20, 0)
    room.refused()
    assert room.limit == 20, "what is refused together is one refusal"
    clock.now += room.pause
    room.taken = 0
    assert room.free == 20
    for _ in range(20 * 44):
        room.answered()
    assert 40 < room.limit <= 64
    for _ in range(64 * 64):
        room.answered()
    assert room.limit == 64, "never more than at the start"


def test_refusals_in_a_row_pause_longer_and_leave_one() -> None:
    clock = Clock()
    room = Room(8, clock)
    pauses = []
    for _ in range(12):
        room.refused()
        pauses.append(room.pause)
        clock.now += room.pause
    assert room.limit == 1, "something must find out whether it takes requests again"
    assert pauses[0] < pauses[1] < pauses[-1] == pytest.approx(pauses[-2]), "ever longer, and not for ever"


def test_the_least_room_forgets_refusals_too_when_it_is_answered() -> None:
    clock = Clock()
    room = Room(1, clock)
    pauses = []
    for _ in range(6):
        room.refused()
        pauses.append(room.pause)
        clock.now += room.pause
        room.answered()
    assert max(pauses) == pytest.approx(min(pauses))
    assert not room.shut


def test_what_takes_nothing_for_long_is_shut() -> None:
    clock = Clock()
    room = Room(8, clock)
    for _ in range(20):
        room.refused()
        clock.now += room.pause
    assert room.shut
    room.taken = 1
    assert not room.shut, "it has something to do"
    room.taken = 0
    room.answered()
    assert not room.shut


def test_what_a_server_reports_bounds_what_waits_inside_it() -> None:
    room = Room(500)
    room.reported(Load(running=20, waiting=300))
    assert room.limit == 20 + WAITING
    room.reported(Load(running=20, waiting=0))
    assert room.limit == 500, "nothing waits, so it doesn't say how much it can compute"
    room.reported(Load(running=9_000, waiting=1))
    assert room.limit == 500


def test_a_server_that_starts_afresh_begins_anew() -> None:
    room = Room(64)
    room.taken = 2
    room.refused()
    room.reported(Load(running=1, waiting=1))
    room.resize(32)
    assert (room.limit, room.free) == (32, 30)
