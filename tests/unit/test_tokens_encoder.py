from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from bake_kit import smollm2
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_build.tokens.encoder import Place, TextEncoder
from fafo_build.tokens.family import why_refused


def content() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(smollm2().tokenizer_json)
    return value


def changed(**parts: Any) -> dict[str, Any]:
    return {**content(), **parts}


@cache
def bytes_alone() -> str:
    """Return the tokenizer without its merges, for tests of control tokens: it is made in no time."""
    value = content()
    control = {token["content"] for token in value["added_tokens"]}
    kept = {
        text: number for text, number in value["model"]["vocab"].items() if len(text) == 1 or text in control
    }
    return json.dumps({**value, "model": {**value["model"], "vocab": kept, "merges": []}})


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


def test_smollm2_can_be_baked() -> None:
    assert why_refused(content()) is None


def test_random_merges_are_refused() -> None:
    model = {**content()["model"], "dropout": 0.1}
    assert why_refused(changed(model=model)) == "its merges are random (dropout 0.1)"


@pytest.mark.parametrize("pattern", [r" (?=[\s\S]*END)", r"(?<!a+)b", r"A.*END", r"x[\s\S]+y"])
@pytest.mark.parametrize("kind", ["Split", "Replace"])
def test_a_tokenizer_that_looks_any_distance_away_is_refused(kind: str, pattern: str) -> None:
    part = {
        "type": kind,
        "pattern": {"Regex": pattern},
        "content": "",
        "behavior": "Isolated",
        "invert": False,
    }
    key = "pre_tokenizer" if kind == "Split" else "normalizer"
    assert why_refused(changed(**{key: part})) == (
        f"what it makes of a text depends on text any distance away (the pattern {pattern})"
    )


@pytest.mark.parametrize(
    "pattern", [r"\s+(?!\S)|\s+", r"\.+| {2,}", r"[!.+*]+[^.*]*", r"(?i:'s|'t)|\p{N}{1,3}"]
)
def test_patterns_of_the_field_are_not_refused(pattern: str) -> None:
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    assert why_refused(changed(pre_tokenizer=part)) is None


def test_a_control_token_that_depends_on_the_letters_beside_it_is_refused() -> None:
    tokens = [{**token, "single_word": True} for token in content()["added_tokens"]]
    why = why_refused(changed(added_tokens=tokens))
    assert why == "its token <|endoftext|> counts only beside white space (single_word)"


def stripping(**strips: str) -> dict[str, Any]:
    """Return SmolLM2's tokenizer with a token for a newline, and what two tokens take on their sides."""
    tokens = [*content()["added_tokens"], {**content()["added_tokens"][2], "id": 49152, "content": "\n"}]
    sides = {"\n": strips.get("newline", ""), "<|im_end|>": strips.get("end", "")}
    return changed(
        added_tokens=[
            {**token, **{f"{side[0]}strip": side in sides.get(token["content"], "") for side in ("l", "r")}}
            for token in tokens
        ]
    )


def test_white_space_that_two_tokens_take_is_refused() -> None:
    """On some texts the library would end the process: the one takes what the other is and takes besides."""
    why = why_refused(stripping(newline="l", end="r"))
    assert why == "its token '\\n' takes white space before it (lstrip), and '<|im_end|>' after it (rstrip)"


@pytest.mark.parametrize("strips", [{"newline": "l"}, {"end": "r"}, {"newline": "r", "end": "lr"}])
def test_white_space_that_one_token_takes_is_not_refused(strips: dict[str, str]) -> None:
    tokenizer = stripping(**strips)
    assert why_refused(tokenizer) is None
    encoder = TextEncoder(json.dumps(tokenizer))
    for spaces in ("", " ", "\n", "\n\n", " \n \n"):
        encoder.canonical(f"a{spaces}<|im_end|>{spaces}<|im_end|>{spaces}a")


def test_a_control_token_takes_the_white_space_that_it_says_and_no_other() -> None:
    def tokenizer(**options: bool) -> str:
        value = json.loads(bytes_alone())
        tokens = [{**token, **(options if token["id"] == 2 else {})} for token in value["added_tokens"]]
        return json.dumps({**value, "added_tokens": tokens})

    text = "a \n<|im_end|>\u00a0\t b\x1c<|im_end|>\x1c"
    for options in ({}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}):
        encoder = TextEncoder(tokenizer(**options))
        assert encoder.constant(text, Place.START) == encoder.canonical(text)
        for at in range(len(text) + 1):
            cut = [control for control in encoder.controls(text) if control.begin < at < control.end]
            if cut:
                continue
            context = encoder.context(text[:at], "")
            rest = encoder.mixed(text[at:], [(0, len(text) - at)], context)
            if context.place is Place.AFTER:
                assert encoder.constant(text[:at], Place.START) + rest == encoder.canonical(text)


def spm(**parts: Any) -> TextEncoder:
    """A BPE that spells spaces as SentencePiece does, with little vocabulary."""
    words = ["<unk>", "<s>", *"▁abc", "▁a", "▁b", "ab", "▁ab"]
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {word: number for number, word in enumerate(words)},
        "merges": [["▁", "a"], ["▁", "b"], ["a", "b"], ["▁", "ab"]],
    }
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": number, "content": words[number], **options} for number in (0, 1)]
    return TextEncoder(json.dumps({"version": "1.0", "added_tokens": added, "model": model, **parts}))


PREPEND = {"type": "Prepend", "prepend": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "split": False}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


@pytest.mark.parametrize(
    ("parts", "start", "after"),
    [
        ({"pre_tokenizer": {**METASPACE, "prepend_scheme": "always"}}, True, True),
        ({"pre_tokenizer": {**METASPACE, "prepend_scheme": "first"}}, True, False),
        ({"pre_tokenizer": {**METASPACE, "prepend_scheme": "never"}}, False, False),
        ({"normalizer": SPACES}, False, False),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Prepend", "prepend": "▁"}, SPACES],
                }
            },
            True,
            True,
        ),
    ],
)
def test_the_mark_of_a_words_beginning_stands_where_the_tokenizer_puts_it(
    parts: dict[str, Any], start: bool, after: bool
) -> None:
    encoder = spm(**parts)
    marked, bare = [encoder.control["<s>"] + 5], [3]
    assert encoder.plain("a", Place.START) == (marked if start else bare)
    assert encoder.plain("a", Place.AFTER) == (marked if after else bare)
    assert encoder.plain("a", Place.INSIDE) == bare
    assert encoder.canonical("a<s>a") == encoder.constant("a<s>a", Place.START)


def test_text_is_never_a_control_token_though_the_vocabulary_has_its_text() -> None:
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<", -3.0], ["s", -3.0], [">", -3.0]]
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": pieces[number][0], **options} for number in (0, 1)],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces},
    }
    encoder = TextEncoder(json.dumps(tokenizer))
    assert encoder.canonical("<s>") == [1]
    assert encoder.plain("<s>") == [2, 3, 4]
    assert encoder.control_ids == {1}, "unknown text gives the unknown token wherever it comes from"


def test_tokens_for_white_space_keep_their_ids_where_control_tokens_are_taken_out() -> None:
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": 0, "content": "<unk>", **options},
        {"id": 3, "content": "<end>", **options},
        {"id": 4, "content": "  ", **options, "special": False},
    ]
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], [" ", -1.0]]}
    words = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, " ": 2}}
    for model in (unigram, words):
        encoder = TextEncoder(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
        assert encoder.canonical("a  a<end>") == [1, 4, 1, 3]
        assert encoder.plain("a  a") == [1, 4, 1]
        assert 3 not in encoder.plain("a  a<end>")
