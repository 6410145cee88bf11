"""What is under way: who is aboard when a server dies, and what an idle one takes over from a slow one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attrs import evolve

from fafo_build.project import declaration
from fafo_run.engines.base import Prefix
from fafo_run.engines.fake import FakeEngine
from fafo_run.item import Claim
from fafo_run.run.evidence import Evidence
from fafo_run.run.flights import Flight, Flights
from fafo_run.run.rank import Rank
from fafo_run.run.server import Server
from tests.log_nouns import item

PREFIX = Prefix("a" * 64, (1, 2, 3))


def rank(folder: Path, name: str, *, running: int = 2, most: int = 10) -> Rank:
    engine = FakeEngine(declaration.Engine("default", "fake"), vocab_size=10, context_length=10)
    limits = evolve(engine._capabilities, server=name, running=running, concurrency=most)
    (only,) = Server(engine, limits, Evidence(folder), lambda _: None, differs=lambda _: None).ranks
    return only


def claim(number: int) -> Claim:
    return Claim(bytes(16), number, number, 1, item(number))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.one, self.other = rank(folder, "http://a"), rank(folder, "http://b")
        self.flights = Flights()

    def begin(self, at: Rank, number: int) -> Flight:
        flight = self.flights.begin(at, [claim(number)], PREFIX)
        flight.task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
        return flight

    def death(self, *numbers: int) -> list[int]:
        """Let the first server die with these aboard; return who is found to have done it."""
        flights = [self.flights.begin(self.one, [claim(number)], PREFIX) for number in numbers]
        found = [one.offset for one in self.flights.died(self.one.server)]
        for flight in flights:
            self.flights.end(flight)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_one_death_makes_nobody_a_suspect_and_two_do(bench: Bench) -> None:
    assert bench.death(1, 2, 3) == []
    assert not bench.flights.is_suspect(claim(1))
    assert bench.death(1, 2, 4) == []
    assert [bench.flights.is_suspect(claim(at)) for at in (1, 2, 3, 4)] == [True, True, False, False]


def test_the_only_suspect_aboard_did_it(bench: Bench) -> None:
    bench.death(1, 2), bench.death(1, 2)
    assert bench.death(1, 7, 8) == [1]
    assert not bench.flights.is_suspect(claim(7)), "with the culprit found, the others are innocent"
    assert bench.death(1, 2) == [], "of two nobody knows which one"


def test_a_break_at_a_server_that_lives_is_a_suspects_fault_alone(bench: Bench) -> None:
    assert [bench.flights.broke(claim(1)) for _ in range(3)] == [False, False, True]


def test_of_many_that_broke_together_all_come_nearer_to_being_suspects(bench: Bench) -> None:
    flights = [bench.flights.begin(bench.one, [claim(number)], PREFIX) for number in range(9)]
    for flight in flights[1:]:
        flight.broken = True
    elsewhere = bench.flights.begin(bench.other, [claim(10)], PREFIX)
    elsewhere.broken = True
    server = bench.one.server
    assert [bench.flights.broken(server), bench.flights.broken(server)] == [[], []]
    suspects = [number for number in range(11) if bench.flights.is_suspect(claim(number))]
    assert suspects == list(range(1, 9))
    for flight in flights[2:]:
        bench.flights.end(flight)
    assert bench.flights.broken(server) == flights[1].claims


def test_an_outcome_clears_a_suspect(bench: Bench) -> None:
    bench.death(1), bench.death(1)
    bench.flights.done(claim(1))
    assert not bench.flights.is_suspect(claim(1))


def test_an_idle_server_takes_over_what_only_waits_elsewhere(bench: Bench) -> None:
    async def main() -> None:
        flights = [bench.begin(bench.one, number) for number in range(5)]
        assert bench.flights.relieve(bench.other) == flights[-2:], "the newest, and what it computes at once"
        for flight in bench.flights.relieve(bench.other):
            bench.flights.move(flight, bench.other)
        assert all(flight.task is not None and flight.task.cancelling() for flight in flights[-2:])
        await asyncio.sleep(0)
        for flight in flights[-2:]:
            bench.flights.end(flight)
        assert bench.flights.relieve(bench.other) == [flights[2]]
        again = [bench.begin(bench.one, number) for number in (3, 4)]
        assert set(bench.flights.relieve(bench.other)).isdisjoint(again), "each is moved once"
        for flight in bench.flights:
            assert flight.task is not None
            flight.task.cancel()

    asyncio.run(main())


def test_who_computes_all_that_it_can_takes_nothing_over(bench: Bench) -> None:
    async def main() -> None:
        flights = [bench.begin(bench.one, number) for number in range(6)]
        flights.append(bench.begin(bench.other, 7))
        assert len(bench.flights.relieve(bench.other)) == 1, "one besides the one it has"
        flights.append(bench.begin(bench.other, 8))
        assert bench.flights.relieve(bench.other) == [], "it would only wait elsewhere"
        for flight in flights:
            assert flight.task is not None
            flight.task.cancel()

    asyncio.run(main())


def test_an_idle_server_takes_over_what_would_have_long_been_answered_here(bench: Bench) -> None:
    async def main() -> None:
        stuck, young = bench.begin(bench.one, 1), bench.begin(bench.one, 2)
        assert bench.flights.relieve(bench.other) == [], "both are computed, and nobody knows better"
        bench.other.server.took(0.5)
        stuck.begun -= 6.9
        assert bench.flights.relieve(bench.other) == []
        stuck.begun -= 0.2
        assert bench.flights.relieve(bench.other) == [stuck]
        assert bench.flights.relieve(bench.one) == [], "nobody relieves itself"
        for flight in (stuck, young):
            assert flight.task is not None
            flight.task.cancel()

    asyncio.run(main())
