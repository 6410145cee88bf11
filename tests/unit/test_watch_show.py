"""How much of an item people are shown: enough to read, however long its row, prompt and output are."""

from __future__ import annotations

from attrs import evolve

from fafo_run.item import Failure, FailureCode, Output, Row, Stage
from fafo_run.watch.show import Shown, render
from fafo_run.watch.words import bounded
from tests.log_nouns import record


def test_a_text_keeps_its_ends_and_says_what_is_left_out() -> None:
    assert bounded("x" * 30, 30) == "x" * 30
    text = "a" * 20 + "b" * 1_001 + "c" * 10
    assert bounded(text, 30) == ("a" * 20 + " [… 1,001 characters left out; --json has them …] " + "c" * 10)


def of_row(text: str) -> Shown:
    made = record(1)
    assert isinstance(made.outcome, Output)
    made = evolve(made, outcome=evolve(made.outcome, ids=tuple(range(5_000))))
    row = Row("s", made.key, {"id": 1, "text": text}, made.content_hash, "s.jsonl:1")
    return Shown(made, row, True, f"<{text}>", f"({text})", 3, f"[{text}]")


def test_a_very_long_item_is_bounded_for_people_and_whole_in_json() -> None:
    text = "".join(f"{number:07}" for number in range(100_000))
    item = of_row(text)
    shown = render(item)
    assert len(shown) < 40_000
    assert "  text: 00000000000001" in shown
    assert shown.count("characters left out; --json has them") == 4, "column, prefix, suffix, output"
    assert "[… 698,000 characters left out" in shown
    assert "0099999>" in shown and "here the prefix ends" in shown and "0099999)" in shown
    assert " 999 and 4,000 more; --json has them" in shown
    told = item.as_json()
    assert told["row"]["text"] == text
    assert (told["prompt"]["prefix"], told["output"]["text"]) == (f"<{text}>", f"[{text}]")
    assert told["output"]["ids"] == list(range(5_000))


def test_no_row_key_or_message_can_pass_for_a_line_of_fafos_own() -> None:
    item = of_row("a\nfailed: forged")
    failure = Failure(FailureCode.REJECTED, Stage.ENGINE, "no\nfailed: forged")
    failed = evolve(item.record, key="k\nfailed: forged", outcome=failure)
    lines = render(evolve(item, record=failed, earlier=(failed,))).split("\n")
    assert [line for line in lines if line.startswith("failed: ")] == ["failed: rejected at engine"]
    assert r" k\nfailed: forged " in lines[0]
    assert lines[lines.index("  text:") + 2] == "  │ failed: forged"


def test_an_item_of_some_pages_is_shown_whole() -> None:
    assert "left out" not in render(of_row("word " * 300))


def test_a_long_message_is_bounded() -> None:
    item = of_row("short")
    failure = Failure(FailureCode.REJECTED, Stage.ENGINE, "m" * 100_000)
    failed = evolve(item.record, outcome=failure)
    shown = render(evolve(item, record=failed, earlier=(failed,)))
    assert shown.count("98,000 characters left out") == 2
