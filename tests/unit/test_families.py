"""The tokenizers that other tests rely on encode as the libraries do that their vocabularies come from."""

from __future__ import annotations

import json

import pytest
import tiktoken
from _pytest.mark import ParameterSet
from sentencepiece import SentencePieceProcessor

from fafo_build.bake.probes import PROBES
from tests import vocabularies
from tests.families import FAMILIES, QUICK, loaded

SENTENCEPIECE = {
    **{name: name.split("-")[1] for name in FAMILIES if name.startswith("mistral-")},
    "unigram-model-only": None,
}
"""Name to version of Mistral's model."""


def slow_unless_quick(name: str, *values: object) -> ParameterSet:
    return pytest.param(name, *values, marks=() if name in QUICK else pytest.mark.slow)


def ids(name: str, text: str) -> list[int]:
    return list(loaded(name).tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", [slow_unless_quick(name) for name in SENTENCEPIECE])
def test_the_ids_of_sentencepiece(name: str) -> None:
    version = SENTENCEPIECE[name]
    model = vocabularies.mistral_model(version).read_bytes() if version else vocabularies.unigram_model()
    oracle = SentencePieceProcessor(model_proto=model)
    control = loaded(name).tokenizer.all_special_tokens
    texts = [probe for probe in PROBES if not any(token in probe for token in control)]
    # Two differences that models in the field have: of the scheme "first", no mark is put before a space; and
    # the library `tokenizers` normalizes a letter together with its accents.
    texts = [text for text in texts if not (name.endswith("first") and text.startswith(" "))]
    texts = [text for text in texts if not (name.startswith("unigram") and "\u0301a\u0308" in text)]
    assert {text: ids(name, text) for text in texts} == {text: oracle.encode(text) for text in texts}


@pytest.mark.slow
def test_the_ids_of_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(vocabularies.tiktoken_cache()))
    oracle = tiktoken.get_encoding("cl100k_base")
    for text in PROBES:
        assert ids("cl100k", text) == oracle.encode(text, disallowed_special=())


@pytest.mark.slow
def test_the_ids_of_tekken() -> None:
    pattern, ranks = vocabularies.tekken_ranks()
    oracle = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    control = loaded("tekken").tokenizer.all_special_tokens
    for text in PROBES:
        if not any(token in text for token in control):
            assert ids("tekken", text) == [1000 + token for token in oracle.encode(text)]
    assert ids("tekken", "[INST]x</s><SPECIAL_999>") == [3, 1000 + ranks[b"x"], 2, 999]


@pytest.mark.parametrize("name", [slow_unless_quick(name) for name in FAMILIES])
def test_the_chat_template_is_that_of_the_family(name: str) -> None:
    """Its control tokens are control tokens, or the family would prove nothing about them."""
    tokenizer = loaded(name).tokenizer
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    got = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    control = {token["id"] for token in json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"]}
    assert len(control.intersection(got)) >= (1 if name in ("anthropic", "normalized") else 2)
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in got


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        slow_unless_quick("roberta", "a  <|im_end|>\n", ["\u0120a", "<|im_end|>", "\u0120\u010a"]),
        slow_unless_quick("phi3", "<|user|>\n\nx", ["<|user|>", "\u2581x"]),
        slow_unless_quick("mistral-v1-prepend", "<s>x", ["<s>", "\u2581x"]),
        slow_unless_quick("mistral-v1-first", "<s>x", ["<s>", "x"]),
        slow_unless_quick("gemma", "<bos>x y", ["<bos>", "x", "\u2581y"]),
        slow_unless_quick("shouting", "[USER] X", ["[user]", "x"]),
        slow_unless_quick(
            "normalized", "one</s>two </s>", ["\u2581one", "</", "s", ">", "two", "\u2581</s>"]
        ),
    ],
)
def test_what_makes_a_family_hard(name: str, text: str, tokens: list[str]) -> None:
    tokenizer = loaded(name).tokenizer
    assert tokenizer.convert_ids_to_tokens(ids(name, text)) == tokens
