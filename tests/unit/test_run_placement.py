"""Prefixes that fit everywhere are everybody's; others are shared out, evenly and for ever alike."""

from __future__ import annotations

from fafo_run.run.placement import Seat, shares

PREFIXES = {f"{at:064x}": 1_000 for at in range(40)}


def seats(count: int, cache: int | None, reserved: int = 0) -> list[Seat]:
    return [Seat(f"http://host{at}:30000", cache, reserved) for at in range(count)]


def test_what_fits_isnt_shared_out() -> None:
    assert shares(seats(4, 40_000), PREFIXES, 40_000) == {}
    assert shares(seats(4, None), PREFIXES, 40_000) == {}, "nobody knows that it doesn't fit"
    assert shares(seats(1, 10), PREFIXES, 40_000) == {}, "there is nobody to share with"


def test_what_running_requests_take_counts() -> None:
    assert shares(seats(4, 40_000, reserved=1), PREFIXES, 40_000) != {}


def test_each_prefix_has_one_place_and_no_place_too_many() -> None:
    found = shares(seats(4, 15_000), PREFIXES, 40_000)
    assert sorted(name for own in found.values() for name in own) == sorted(PREFIXES)
    assert max(map(len, found.values())) <= 13, "a quarter more than its share"


def test_one_server_more_moves_few_prefixes() -> None:
    before, after = shares(seats(4, 15_000), PREFIXES, 40_000), shares(seats(5, 15_000), PREFIXES, 40_000)
    old = {artifact: seat for seat, own in before.items() for artifact in own}
    new = {artifact: seat for seat, own in after.items() for artifact in own}
    moved = sum(old[name] != new[name] for name in PREFIXES)
    assert 0 < moved < len(PREFIXES) / 2


def test_the_order_of_the_servers_decides_nothing() -> None:
    found = shares(seats(4, 15_000), PREFIXES, 40_000)
    assert shares(seats(4, 15_000)[::-1], PREFIXES, 40_000) == found


def test_one_prefix_that_is_longer_than_any_share_has_a_place() -> None:
    found = shares(seats(3, 100), {"a" * 64: 5_000, "b" * 64: 1}, 5_001)
    assert sorted(name[0] for own in found.values() for name in own) == ["a", "b"]
