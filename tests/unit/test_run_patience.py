"""An outage is nobody's fault; an item that fails while the engine lives uses its attempts up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from fafo_build.errors import EngineError
from fafo_run.engines.base import Capabilities, Completion, Engine, Prefix, Request, Unavailable, WarmUp
from fafo_run.item import Claim, Provenance, QueuedItem
from fafo_run.run.patience import Patience

PREFIX = Prefix("00" * 32, (1, 2, 3))


class Canary(Engine):
    """An engine that lives or not, and counts how often it was asked for the prefix."""

    def __init__(self, *, lives: bool) -> None:
        self.lives = lives
        self.asked = 0

    async def start(self) -> Capabilities:
        raise Unavailable("unused")

    async def warm(self, prefix: Prefix) -> WarmUp:
        self.asked += 1
        await asyncio.sleep(0)
        if not self.lives:
            raise Unavailable("away")
        return WarmUp(3, 2)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        raise Unavailable("unused")

    async def stop(self) -> None:
        pass


def claim(name: int) -> Claim:
    of = Provenance("c", "s", "00" * 32, "m", "00" * 32, {}, "00" * 32)
    item = QueuedItem(bytes([name]) * 16, of, str(name), 0, 1, bytes(32), (1,), ((0, 1),), 2, 128)
    return Claim(bytes(16), 4096, 1, 1, item)


def test_an_outage_costs_no_attempt() -> None:
    async def outage() -> None:
        patience = Patience(Canary(lives=False), attempts=2)
        for _ in range(10):
            assert await patience.lost([claim(1)], PREFIX, "refused") == []
        assert "refused" in patience.notice

    asyncio.run(outage())


def test_an_item_that_fails_while_the_engine_lives_is_given_up_after_its_attempts() -> None:
    """Also when it is the last item, and nobody else's answer shows that the engine lives."""

    async def poison() -> None:
        patience = Patience(Canary(lives=True), attempts=2)
        assert await patience.lost([claim(1)], PREFIX, "HTTP 500") == []
        assert patience.notice == ""
        assert await patience.lost([claim(1)], PREFIX, "HTTP 500") == [claim(1)]

    asyncio.run(poison())


def test_an_answer_clears_the_count_and_ends_the_outage() -> None:
    async def recovery() -> None:
        engine = Canary(lives=True)
        patience = Patience(engine, attempts=2)
        await patience.lost([claim(1)], PREFIX, "reset")
        patience.answered([claim(1)])
        assert await patience.lost([claim(1)], PREFIX, "reset") == []
        engine.lives = False
        await patience.lost([claim(2)], PREFIX, "away")
        assert patience.notice != ""
        patience.answered([claim(2)])
        assert patience.notice == ""
        await asyncio.wait_for(patience.wait(), 0.2)

    asyncio.run(recovery())


def test_what_is_lost_together_asks_for_few_canaries() -> None:
    async def together() -> int:
        engine = Canary(lives=False)
        patience = Patience(engine, attempts=2)
        await asyncio.gather(*(patience.lost([claim(name)], PREFIX, "reset") for name in range(50)))
        return engine.asked

    assert asyncio.run(together()) <= 2


def test_an_outage_without_end_ends_the_run_with_what_to_do() -> None:
    patience = Patience(Canary(lives=False), attempts=2, give_up=0.0)
    patience.outage("connection refused")
    time.sleep(0.001)
    with pytest.raises(EngineError) as caught:
        asyncio.run(patience.wait())
    assert "connection refused" in caught.value.render()
    assert "cure:" in caught.value.render()


def test_waiting_lasts_while_the_outage_does() -> None:
    async def waiting() -> None:
        patience = Patience(Canary(lives=False), attempts=2)
        await asyncio.wait_for(patience.wait(), 0.2)
        patience.outage("away")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(patience.wait(), 0.05)

    asyncio.run(waiting())
