"""Cuts in constant text: what is on the far side keeps its ids, whatever comes beside the glue."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bake_kit import smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.tokens.boundary import cuts_of, end_of_span, start_of_span
from fafo_build.tokens.encoder import Place, TextEncoder
from tests.families import model

ENCODER = smollm2().encoder


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("<|im_start|>", "<|im_start|>"),
        ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>user"),
        ("user\nFact: ", "user\nFact:"),
        ("user\nFact", "user\n"),
        ("one", ""),
        ("", ""),
        ("x'l", "x"),
        ("it's", "it"),
        ("a  \n", "a"),
        ("year 19", "year 1"),
    ],
)
def test_where_a_span_ends(text: str, span: str) -> None:
    assert text[: end_of_span(ENCODER, text)] == span


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("<|im_end|>\n", "<|im_end|>\n"),
        (" and then<|im_end|>", "<|im_end|>"),
        ("\n\nAnswer:", "\nAnswer:"),
        (" one two three", " two three"),
        ("one", ""),
        ("", ""),
    ],
)
def test_where_a_span_begins(text: str, span: str) -> None:
    assert text[start_of_span(ENCODER, text) :] == span


LITERALS = [
    "user\nFact: ",
    "x'l",
    "it's",
    "Fact (",
    "a\t\n ",
    "“quoted”",
    "12 34",
    "日本語 ",
    "a' ",
    "…\n\n",
    "x\u200d",
]


@pytest.mark.parametrize("literal", LITERALS)
@settings(deadline=None)
@given(after=st.text(max_size=12))
def test_nothing_after_an_end_changes_the_span(literal: str, after: str) -> None:
    cut = end_of_span(ENCODER, literal)
    assert ENCODER.plain(literal[:cut]) + ENCODER.plain(literal[cut:] + after) == ENCODER.plain(
        literal + after
    )


@pytest.mark.parametrize("literal", LITERALS)
@settings(deadline=None)
@given(before=st.text(max_size=12))
def test_nothing_before_a_start_changes_the_span(literal: str, before: str) -> None:
    cut = start_of_span(ENCODER, literal)
    assert ENCODER.plain(before + literal[:cut]) + ENCODER.plain(literal[cut:]) == ENCODER.plain(
        before + literal
    )


def test_a_span_of_unigram_ends_before_a_word() -> None:
    # `000` is `00` and `0` or `0` and `00`; which of the two is a matter of rounding what precedes it.
    encoder = model("unigram").encoder
    for text in ("Fact:(", "The Software(", "HELLO"):
        for after in ("000", "00000", "t000", "|賤000"):
            cut = end_of_span(encoder, text)
            place = Place.INSIDE if cut else Place.START
            apart = encoder.plain(text[:cut], Place.START) + encoder.plain(text[cut:] + after, place)
            assert apart == encoder.plain(text + after, Place.START)


class Counting(TextEncoder):
    """Counts what is asked of it, and of the encodings that it gives."""

    def __init__(self, tokenizer_json: bytes) -> None:
        super().__init__(tokenizer_json)
        self.asked: Counter[str] = Counter()

    def pieces(self, text: str, place: Place = Place.AFTER) -> Any:
        encoding, asked = super().pieces(text, place), self.asked

        class Counted:
            def __getattr__(self, name: str) -> Any:
                asked[name] += 1
                return getattr(encoding, name)

        return Counted()

    def plain(self, text: str, place: Place = Place.AFTER) -> list[int]:
        self.asked["plain"] += 1
        return super().plain(text, place)


@pytest.fixture(scope="module")
def counting() -> Counting:
    return Counting(smollm2().tokenizer_json)


def test_the_lists_of_an_encoding_are_made_once_however_long_it_is(counting: Counting) -> None:
    counting.asked.clear()
    assert len(cuts_of(counting, "one two three " * 50, Place.AFTER)) > 100
    assert set(counting.asked.values()) == {1}


def test_a_cut_that_holds_is_not_tried_again(counting: Counting) -> None:
    def asked(text: str) -> int:
        counting.asked.clear()
        assert 0 < end_of_span(counting, text) < len(text)
        assert 0 < start_of_span(counting, text) < len(text)
        return counting.asked["plain"]

    assert asked("Both end alike: ") > 200
    assert asked("Both end alike: ") == 0
