"""What is promised to repeat, by what an engine says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from fafo_run.engines.repeat import DETERMINISTIC, Level, repeatability, weaker

GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 0.8}
ON, OFF = {DETERMINISTIC: True, "attention_backend": "fa3"}, {DETERMINISTIC: False}


@pytest.mark.parametrize(
    ("engine", "settings", "sampling", "level", "why"),
    [
        ("fake", {}, SAMPLED, Level.YES, "seed alone"),
        ("transformers", {"dtype": "bfloat16"}, GREEDY, Level.MOSTLY, "decoding is greedy, but what else"),
        ("transformers", {"dtype": "float32"}, SAMPLED, Level.MOSTLY, "its own seed"),
        ("sglang", ON, GREEDY, Level.YES, "fa3"),
        ("sglang", ON, SAMPLED, Level.YES, "heeds each item's seed"),
        ("sglang", OFF, GREEDY, Level.MOSTLY, "whether the prefix was cached"),
        ("sglang", OFF, SAMPLED, Level.NO, "--enable-deterministic-inference"),
        ("sglang", OFF, {}, Level.NO, "--enable-deterministic-inference"),
        ("sglang", {}, GREEDY, Level.UNKNOWN, "didn't say"),
        ("", {}, GREEDY, Level.UNKNOWN, "didn't say"),
    ],
)
def test_each_combination_has_its_promise_and_its_reason(
    engine: str, settings: dict[str, Any], sampling: dict[str, Any], level: Level, why: str
) -> None:
    found = repeatability(engine, settings, sampling)
    assert found.level is level
    assert why in found.why
    assert found.as_json() == {"level": level.value, "why": found.why}


def test_of_two_promises_the_weaker_counts() -> None:
    found = {
        level: repeatability(engine, settings, sampling)
        for level, engine, settings, sampling in (
            (Level.YES, "fake", {}, GREEDY),
            (Level.MOSTLY, "sglang", OFF, GREEDY),
            (Level.UNKNOWN, "sglang", {}, GREEDY),
            (Level.NO, "sglang", OFF, SAMPLED),
        )
    }
    order = list(found.values())
    for at, one in enumerate(order):
        for other in order[at:]:
            assert weaker(one, other) == weaker(other, one) == other
