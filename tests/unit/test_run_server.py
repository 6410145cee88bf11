"""A server's health is what it answers: when it is quarantined, how it comes back, and when it doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from fafo_build.errors import EngineError
from fafo_build.project import declaration
from fafo_build.project.declaration import Sampling
from fafo_run.engines.base import Busy, Capabilities, Completion, Load, Prefix, Request, Unavailable, WarmUp
from fafo_run.engines.fake import FakeEngine
from fafo_run.engines.fleet import difference
from fafo_run.run import evidence, room, server
from fafo_run.run.evidence import Evidence
from fafo_run.run.rank import Rank
from fafo_run.run.server import Server

PREFIX = Prefix("a" * 64, (1, 2, 3))
REQUEST = Request(bytes(16), 1, PREFIX, (4,), Sampling(max_new_tokens=2), 7)


class Moody(FakeEngine):
    """An engine whose answers to items, prefixes and questions the test decides."""

    def __init__(self) -> None:
        super().__init__(declaration.Engine("default", "fake"), vocab_size=10, context_length=100)
        self.said = evolve(self._capabilities, server="http://a", boot="first")
        self.items: Callable[[], Exception | None] = lambda: None
        self.prefixes: Callable[[], Exception | None] = lambda: None
        self.away = self.silent = False
        self.canaries = self.asked = self.again = 0

    @property
    def sent_again(self) -> int:
        return self.again

    async def look(self) -> Capabilities:
        if self.away:
            raise EngineError.of("nobody is there", cure="wait")
        return self.said

    async def load(self) -> Sequence[Load]:
        self.asked += 1
        if self.silent:
            raise Unavailable("nobody is there")
        return ()

    async def warm(self, prefix: Prefix, rank: int = 0) -> WarmUp:
        self.canaries += 1
        await asyncio.sleep(0)
        if error := self.prefixes():
            raise error
        return await super().warm(prefix)

    async def generate(self, requests: Sequence[Request], rank: int = 0) -> list[Completion]:
        await asyncio.sleep(0)
        if error := self.items():
            raise error
        return await super().generate(requests)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = Moody()
        self.said: list[str] = []
        self.server = Server(
            self.engine,
            self.engine.said,
            Evidence(folder),
            self.said.append,
            differs=lambda later: difference(self.engine.said, later),
        )
        self.deaths: list[bool] = []
        self.server.on_quarantine = self.deaths.append

    @property
    def rank(self) -> Rank:
        return self.server.ranks[0]

    async def lose(self, *, broken: bool = False) -> bool:
        return await self.server.lives(PREFIX, 0, Unavailable("reset", broken=broken))

    def told(self) -> list[str]:
        return [type(event).__name__ for event in evidence.read(self.folder)[0]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(server, "_FIRST_PROBE", 0.001)
    return Bench(tmp_path)


def run(bench: Bench, main: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        await bench.engine.start()
        await bench.server.begin()
        try:
            await asyncio.wait_for(main, 30)
        finally:
            await bench.server.end()

    asyncio.run(whole())


def ended(bench: Bench) -> evidence.Ended:
    (found,) = [event for event in evidence.read(bench.folder)[0] if isinstance(event, evidence.Ended)]
    return found


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_what_is_lost_while_a_canary_is_answered_counts(bench: Bench) -> None:
    async def main() -> None:
        assert await bench.lose()
        assert bench.server.up and bench.engine.canaries == 1

    run(bench, main())
    assert bench.told() == ["Started", "Ended"]


def test_what_is_lost_together_asks_for_one_canary(bench: Bench) -> None:
    async def main() -> None:
        bench.engine.prefixes = lambda: Unavailable("away")
        bench.engine.away = True
        found = await asyncio.gather(*(bench.lose(broken=True) for _ in range(50)))
        assert not any(found) and bench.engine.canaries == 1
        assert bench.deaths == [True] and "reset" in bench.said[0]

    run(bench, main())


def test_one_break_among_what_is_lost_together_is_a_death(bench: Bench) -> None:
    async def main() -> None:
        bench.engine.prefixes = lambda: Unavailable("away")
        bench.engine.away = True
        await asyncio.gather(*(bench.lose(broken=at == 3) for at in range(5)))
        assert bench.deaths == [True]

    run(bench, main())


@pytest.mark.parametrize("broken", [True, False])
def test_one_that_died_and_is_back_before_the_canary_is_seen_to_be_another(
    bench: Bench, broken: bool
) -> None:
    async def main() -> None:
        bench.engine.said = evolve(bench.engine.said, boot="second")
        assert await bench.lose(broken=broken) is not broken
        assert bench.deaths == [True] * broken
        await until(lambda: bench.server.up)

    run(bench, main())


def test_another_process_after_a_silence_is_noticed_though_nothing_was_under_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LOADS", 0.001)

    async def main() -> None:
        await bench.rank.warm(PREFIX)
        bench.engine.silent = True
        await until(lambda: bench.engine.asked > 1)
        bench.engine.said = evolve(bench.engine.said, boot="second")
        bench.engine.silent = False
        await until(lambda: "Returned" in bench.told())

    run(bench, main())
    (back,) = [event for event in evidence.read(bench.folder)[0] if isinstance(event, evidence.Returned)]
    assert back.restarted


def test_a_warm_up_without_an_answer_counts_as_lost(bench: Bench) -> None:
    """The server may have computed it, and counted it."""

    async def main() -> None:
        bench.engine.prefixes = lambda: Unavailable("reset")
        await bench.rank.warm(PREFIX)
        bench.engine.prefixes = lambda: None
        await until(lambda: bench.server.up)
        cancelled = asyncio.create_task(bench.rank.warm(PREFIX))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    run(bench, main())
    (end,) = [event for event in evidence.read(bench.folder)[0] if isinstance(event, evidence.Ended)]
    assert end.sums.lost == 2


def test_what_was_sent_twice_may_be_counted_twice(bench: Bench) -> None:
    async def main() -> None:
        await bench.rank.warm(PREFIX)
        bench.engine.again += 2

    bench.engine.again = 5  # of an earlier life
    run(bench, main())
    (end,) = [event for event in evidence.read(bench.folder)[0] if isinstance(event, evidence.Ended)]
    assert (end.sums.requests, end.sums.lost) == (1, 2)


def test_a_busy_server_that_answers_others_lives(bench: Bench) -> None:
    async def main() -> None:
        def answered_meanwhile() -> Exception:
            bench.server.answered(1, 4, 3)
            return Unavailable("the canary waits behind the others")

        bench.engine.prefixes = answered_meanwhile
        assert await bench.lose()

    run(bench, main())


def test_it_comes_back_when_it_answers_and_its_caches_are_cold(bench: Bench) -> None:
    async def main() -> None:
        await bench.rank.warm(PREFIX)
        assert not bench.rank.needs_warming(PREFIX)
        bench.engine.prefixes = lambda: Unavailable("away")
        bench.engine.away = True
        assert not await bench.lose(broken=True)
        bench.engine.said = evolve(bench.engine.said, boot="second")
        bench.engine.away = False
        bench.engine.cache.clear()
        bench.engine.prefixes = lambda: None
        await until(lambda: bench.server.up)
        assert bench.server.capabilities.boot == "second"
        other = Prefix("b" * 64, (3, 2, 1))
        assert bench.rank.needs_warming(other)
        assert not bench.rank.needs_warming(PREFIX), "the canary was its warm-up"

    run(bench, main())
    events, _ = evidence.read(bench.folder)
    assert bench.told() == ["Started", "Warmed", "Quarantined", "Returned", "Warmed", "Ended"]
    (back,) = [event for event in events if isinstance(event, evidence.Returned)]
    assert back.restarted
    (end,) = [event for event in events if isinstance(event, evidence.Ended)]
    assert (end.sums.requests, end.sums.prompt_tokens) == (1, 3), "since it started anew"


def test_one_that_comes_back_with_another_model_isnt_asked(bench: Bench) -> None:
    async def main() -> None:
        first = bench.engine.said
        bench.engine.prefixes = lambda: Unavailable("away")
        assert not await bench.lose()
        bench.engine.prefixes = lambda: None
        bench.server._differs = lambda later: difference(first, later)
        bench.engine.said = evolve(first, model="another")
        await until(lambda: "Excluded" in bench.told())
        assert not bench.server.up and "another" in bench.server.reason
        bench.engine.said = first
        await until(lambda: bench.server.up)

    run(bench, main())
    assert bench.told().count("Excluded") == 1


def test_one_that_answers_prefixes_and_no_item_is_quarantined(bench: Bench) -> None:
    """Else it would be the fastest of all, and every item would soon have used up its attempts there."""

    async def main() -> None:
        bench.engine.items = lambda: Unavailable("HTTP 500")
        counted = 0
        for _ in range(20):
            with pytest.raises(Unavailable):
                await bench.rank.generate([REQUEST])
            if bench.server.up:
                counted += await bench.lose()
        assert counted < 2 * server._STREAK and "in a row" in " ".join(bench.said)

    run(bench, main())


def test_an_answer_ends_the_row_of_losses(bench: Bench) -> None:
    async def main() -> None:
        for _ in range(20):
            assert await bench.lose()
            await bench.rank.generate([REQUEST])

    run(bench, main())
    assert "Quarantined" not in bench.told()


def test_a_server_that_takes_no_more_gets_less_and_is_nobodys_fault(bench: Bench) -> None:
    async def main() -> None:
        bench.engine.items = lambda: Busy("HTTP 503: The request queue is full.")
        with pytest.raises(Busy):
            await bench.rank.generate([REQUEST])
        assert bench.rank.room.free == 0 and bench.server.up
        bench.engine.prefixes = bench.engine.items
        await bench.rank.warm(PREFIX)
        assert bench.server.up and bench.rank.needs_warming(PREFIX)

    run(bench, main())


def test_a_server_that_refuses_even_prefixes_for_long_is_quarantined_and_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_FIRST_PAUSE", 0.0001)

    async def main() -> None:
        bench.engine.prefixes = lambda: Busy("HTTP 503: The request queue is full.")
        while bench.server.up:
            await bench.rank.warm(PREFIX)
        assert "queue is full" in bench.server.reason
        bench.engine.prefixes = lambda: None
        await until(lambda: bench.server.up)

    run(bench, main())
    assert "Quarantined" in bench.told() and "Returned" in bench.told()


def test_a_prefix_that_was_evicted_is_warmed_again_and_told(bench: Bench) -> None:
    async def main() -> None:
        await bench.rank.warm(PREFIX)
        for cached in (3, 0):
            epoch = bench.rank.warmth.epoch(PREFIX.artifact)
            (answer,) = await bench.rank.generate([REQUEST])
            bench.rank.judge(PREFIX, epoch, evolve(answer, cached_tokens=cached), 3)  # type: ignore[arg-type]
        assert bench.rank.needs_warming(PREFIX)
        await bench.rank.warm(PREFIX)

    run(bench, main())
    events, _ = evidence.read(bench.folder)
    assert [event.why for event in events if isinstance(event, evidence.Warmed)] == ["first", "evicted"]
    assert [event.cached_tokens for event in events if isinstance(event, evidence.Missed)] == [0]


def test_a_warm_up_that_was_refused_was_not_answered(bench: Bench) -> None:
    async def main() -> None:
        too_long = Prefix("b" * 64, (1,) * 200)
        await bench.rank.warm(too_long)
        assert not bench.rank.needs_warming(too_long), "its items are refused one by one"
        assert bench.rank.warm_ups == []
        assert await bench.server.lives(too_long, 0, Unavailable("reset")), "it said no, and so it lives"

    run(bench, main())
    assert bench.told() == ["Started", "Ended"]
    assert ended(bench).sums == evidence.Sums()


@pytest.mark.parametrize(("error", "lost"), [(Busy("full"), 0), (Unavailable("reset"), 1)])
def test_what_a_server_takes_no_more_is_not_lost(bench: Bench, error: Unavailable, lost: int) -> None:
    async def main() -> None:
        bench.engine.away = True  # Once quarantined it isn't asked again.
        bench.engine.prefixes = lambda: error
        await bench.rank.warm(PREFIX)
        await bench.lose()

    run(bench, main())
    # One that is quarantined by its warm-up isn't asked for a canary.
    assert ended(bench).sums == evidence.Sums(lost=lost)


def test_a_canary_that_is_called_off_is_lost(bench: Bench) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hang(*_: object) -> WarmUp:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        bench.engine.warm = hang  # type: ignore[assignment]
        losing = asyncio.create_task(bench.lose())
        await begun.wait()
        losing.cancel()
        await asyncio.gather(losing, return_exceptions=True)

    run(bench, main())
    assert ended(bench).sums == evidence.Sums(lost=1)


def test_without_a_prefix_cache_nothing_is_warmed(bench: Bench) -> None:
    bench.server.capabilities = evolve(bench.engine.said, prefix_cache=False)
    assert not bench.rank.needs_warming(PREFIX)
    bench.server.capabilities = evolve(bench.engine.said, page_size=16)
    assert not bench.rank.needs_warming(PREFIX), "it fills no page"


def test_how_long_something_is_under_way_and_nothing_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    it = bench.server
    assert it.unanswered == 0.0, "nothing is under way"
    with it.asking():
        now = 110.0
        with it.asking():
            now = 130.0
            assert it.unanswered == 30.0
            it.answered(1, 3, 0)
            now = 135.0
            assert it.unanswered == 5.0
    assert it.unanswered == 0.0
    now = 200.0
    with it.asking():
        assert it.unanswered == 0.0


def test_a_server_that_says_no_word_is_known_to_be_silent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LOADS", 0.001)

    async def main() -> None:
        silent = True

        async def load() -> list[Load]:
            if silent:
                raise Unavailable("/v1/loads: no answer")
            return [Load(1, 0)]

        bench.engine.load = load  # type: ignore[method-assign]
        await until(lambda: bench.server.silent_since is not None)
        assert bench.server.up, "it may have much to do"
        silent = False
        await until(lambda: bench.server.silent_since is None)

    run(bench, main())
