from __future__ import annotations

import json
from typing import Any

import pytest
from bake_kit import smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.tokens.encoder import TextEncoder
from fafo_build.tokens.family import why_unproven


def content() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(smollm2().tokenizer_json)
    return value


def changed(**parts: Any) -> dict[str, Any]:
    return {**content(), **parts}


ENCODER = smollm2().encoder


def test_the_tokenizer_splits_digits() -> None:
    assert len(ENCODER.plain("1969")) == 4


def test_plain_text_has_no_control_tokens() -> None:
    for text, number in ENCODER.control.items():
        assert ENCODER.canonical(text) == [number]
        ids = ENCODER.plain(f"a{text}b")
        assert not set(ids) & set(ENCODER.control.values())
        assert ENCODER.decode(ids) == f"a{text}b"


def test_the_two_ways_do_not_disturb_each_other() -> None:
    assert ENCODER.plain("<|im_end|>") != ENCODER.canonical("<|im_end|>")
    assert ENCODER.canonical("<|im_end|>") == [2]


def test_mixed_text_has_control_tokens_only_in_its_regions() -> None:
    text = "a<|im_end|>b<|im_end|>c"
    assert ENCODER.mixed(text, [(0, len(text))]) == ENCODER.canonical(text)
    assert ENCODER.mixed(text, []) == ENCODER.plain(text)
    half = ENCODER.mixed(text, [(1, 11)])
    assert half == [*ENCODER.plain("a"), 2, *ENCODER.plain("b<|im_end|>c")]
    assert ENCODER.mixed(text, [(1, 10)]) == ENCODER.plain(text), (
        "a token that sticks out of its region is text"
    )
    assert ENCODER.mixed("", []) == []
    assert ENCODER.mixed("<|im_end|>", [(0, 10)]) == [2]


def test_plain_runs_beside_a_region_without_tokens_are_encoded_as_one() -> None:
    assert ENCODER.mixed("hello world", [(3, 7)]) == ENCODER.plain("hello world")


# This vocabulary lacks some bytes (of the planes 4 to 11, and of a few control characters): the
# tokenizer drops them, wherever it is called.
@settings(deadline=None)
@given(
    st.text(
        st.characters(
            max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d"
        )
    )
)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert ENCODER.decode(ENCODER.plain(text)) == text


def test_an_added_token_that_is_not_special_is_a_control_token_unless_it_is_white_space() -> None:
    extra = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    size = len(content()["model"]["vocab"])
    tokens = [
        *content()["added_tokens"],
        {"id": size, "content": "<think>", **extra},
        {"id": size + 1, "content": "    ", **extra},
    ]
    encoder = TextEncoder(json.dumps(changed(added_tokens=tokens)))
    assert encoder.canonical("<think>    x")[:2] == [size, size + 1]
    assert "<think>" in encoder.control
    assert "    " not in encoder.control
    plain = encoder.plain("<think>    x")
    assert size not in plain
    assert size + 1 in plain, "runs of spaces are text, and must be what the model's own encoding gives"


def test_truncation_and_padding_have_no_effect() -> None:
    limited = changed(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        },
    )
    assert TextEncoder(json.dumps(limited)).plain("one two three four") == ENCODER.plain("one two three four")


def test_a_bos_that_the_tokenizer_adds() -> None:
    assert ENCODER.one_bos() is None
    post = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    assert TextEncoder(json.dumps(changed(post_processor=post))).one_bos() == 1


def test_smollm2_is_proven() -> None:
    assert why_unproven(content()) is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"model": {"type": "Unigram"}}, "its model is Unigram"),
        ({"model": {"type": "BPE", "byte_fallback": True}}, "SentencePiece"),
        ({"model": {"type": "BPE", "dropout": 0.1}}, "random"),
        ({"model": {"type": "BPE", "end_of_word_suffix": "</w>"}}, "parts of words"),
        ({"normalizer": {"type": "NFC"}}, "normalizer NFC"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "no ByteLevel"),
        ({"pre_tokenizer": None}, "no ByteLevel"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "add_prefix_space"),
    ],
)
def test_other_kinds_are_named(parts: dict[str, Any], why: str) -> None:
    found = why_unproven(changed(**parts))
    assert found is not None
    assert why in found


def test_a_token_that_eats_spaces_is_not_proven() -> None:
    tokens = [{**token, "rstrip": True} for token in content()["added_tokens"]]
    assert why_unproven(changed(added_tokens=tokens)) == "its token <|endoftext|> has the option rstrip"
