"""An outage is nobody's fault; an item that fails while others get through uses its attempts up."""

import asyncio
import time

import pytest

from fafo_build.errors import EngineError
from fafo_run.item import Claim, Provenance, QueuedItem
from fafo_run.run.patience import Patience


def claim(name: int, attempt: int = 1) -> Claim:
    of = Provenance("c", "s", "00" * 32, "m", "00" * 32, {}, "00" * 32)
    item = QueuedItem(bytes([name]) * 16, of, str(name), 0, 1, bytes(32), (1,), ((0, 1),), 2, 128)
    return Claim(bytes(16), 4096, attempt, attempt, item)


def test_an_outage_costs_no_attempt() -> None:
    patience = Patience(attempts=2)
    sent = time.monotonic()
    for _ in range(10):
        assert patience.lost([claim(1)], sent, "refused") == []
    assert "refused" in patience.notice


def test_an_item_that_fails_while_others_are_answered_is_given_up_after_its_attempts() -> None:
    patience = Patience(attempts=2)
    sent = time.monotonic()
    patience.answered([claim(2)])
    assert patience.lost([claim(1)], sent, "reset") == []
    assert patience.lost([claim(1)], sent, "reset") == [claim(1)]


def test_an_answer_ends_the_outage_and_clears_the_count() -> None:
    patience = Patience(attempts=2)
    sent = time.monotonic()
    patience.answered([claim(2)])
    patience.lost([claim(1)], sent, "reset")
    patience.answered([claim(1)])
    assert patience.notice == ""
    assert patience.lost([claim(1)], sent, "reset") == []


def test_an_outage_without_end_ends_the_run_with_what_to_do() -> None:
    patience = Patience(attempts=2, give_up=0.0)
    patience.lost([claim(1)], time.monotonic(), "connection refused")
    time.sleep(0.001)
    with pytest.raises(EngineError) as caught:
        asyncio.run(patience.wait())
    assert "connection refused" in caught.value.render()
    assert "cure:" in caught.value.render()


def test_waiting_grows_and_is_none_while_the_engine_answers() -> None:
    patience = Patience(attempts=2)
    asyncio.run(asyncio.wait_for(patience.wait(), 0.1))
    patience.lost([claim(1)], time.monotonic(), "away")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(patience.wait(), 0.05))
