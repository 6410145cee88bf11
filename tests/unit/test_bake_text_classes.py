"""Raw and completion classes with every family of tokenizers: the ids are those that it gives the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project, prompt_class
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.compile import compile_class
from fafo_build.bake.probes import HOSTILE, PROBES
from fafo_build.errors import BakeError
from fafo_run.prompt import PromptEncoder
from tests import families

QUICK = ("smollm2", "mistral-v7-first", "wordpiece")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in families.FAMILIES]


def bake(root: Path, name: str, form: str, *texts: str) -> Artifact:
    declared = prompt_class(root, *(("user", text) for text in texts))
    messages = tuple(evolve(message, role=None) for message in declared.messages)
    declared = evolve(declared, format=form, messages=messages)  # type: ignore[arg-type]
    return compile_class(project(root, declared), declared, families.model(name))


def takes_texts_whole(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Tell whether a text is one search for the best tokens, so that any of it may matter to all of it."""
    backend = tokenizer.backend_tokenizer
    return isinstance(backend.model, Unigram) and len(backend.pre_tokenizer.pre_tokenize_str("one two")) == 1


@pytest.mark.parametrize("begin", ["Fact: ", ""])
@pytest.mark.parametrize("name", NAMES)
def test_a_completion_is_what_the_tokenizer_gives_the_text(tmp_path: Path, name: str, begin: str) -> None:
    tokenizer = families.loaded(name).tokenizer
    adds = tokenizer("x").input_ids != tokenizer("x", add_special_tokens=False).input_ids
    if not adds and (not begin or takes_texts_whole(tokenizer)):
        with pytest.raises(BakeError, match="there is no prefix to bake"):
            bake(tmp_path, name, "completion", begin + "{{ item.text }}.")
        return
    artifact = bake(tmp_path, name, "completion", begin + "{{ item.text }}.\nIn short:")
    encoder = PromptEncoder(artifact, families.model(name).encoder)
    control = families.model(name).encoder.control
    for probe in (HOSTILE, *PROBES):
        text = f"{begin}{probe}.\nIn short:"
        if any(token in text for token in control):
            continue
        prompt = encoder.encode({"text": probe}, "rows", "1")
        assert [*encoder.prefix, *prompt.suffix] == tokenizer(text).input_ids, repr(probe)
        assert encoder.recheck({"text": probe}, "rows", "1", prompt)


def test_a_beginning_that_ends_within_a_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError) as caught:
        bake(tmp_path, "smollm2", "completion", "Re{{ item.text }}")
    (problem,) = caught.value.problems
    assert problem.message == (
        "the item may change all tokens of the constant text before it, so there is no prefix to bake"
    )
    assert problem.cure == (
        "begin the first message with a special token of the model, or with more constant text"
    )


@pytest.mark.parametrize("name", QUICK[:2])
def test_a_prompt_is_shown_with_the_space_at_a_cut(tmp_path: Path, name: str) -> None:
    artifact = bake(tmp_path, name, "raw", "Fact: {{ item.text }}")
    encoder = PromptEncoder(artifact, families.model(name).encoder)
    prompt = encoder.encode({"text": "Oslo"}, "rows", "1")
    assert encoder.prompt_text(prompt.suffix) == ("Fact:", " Oslo")


def test_a_token_that_takes_a_space_only_after_normalizing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BakeError, match=r"token 1 is .* and 1 \('<s>'\) when the whole conversation is"):
        bake(tmp_path, "normalized", "raw", "One <s>", "{{ item.text }}", "<s> two")


@pytest.mark.parametrize("name", [name for name in NAMES if getattr(name, "values", 0) != ("normalized",)])
def test_a_raw_class_holds_its_author_s_tokens_and_no_others(tmp_path: Path, name: str) -> None:
    tokenizer = families.loaded(name).tokenizer
    control = families.model(name).encoder.control
    token = next(token for token in control if token != tokenizer.unk_token)
    artifact = bake(tmp_path, name, "raw", f"One {token}", "{{ item.text }}", f"{token} two")
    encoder = PromptEncoder(artifact, families.model(name).encoder)
    for probe in (HOSTILE, *PROBES):
        if any(other in probe for other in control):
            continue
        prompt = encoder.encode({"text": probe}, "rows", "1")
        want = tokenizer(f"One {token}{probe}{token} two", add_special_tokens=False).input_ids
        assert [*encoder.prefix, *prompt.suffix] == want, repr(probe)
    hostile = encoder.encode({"text": f"{token} {token}"}, "rows", "1")
    plain = encoder.encode({"text": "harmless"}, "rows", "1")
    ids = families.model(name).encoder.control_ids
    assert sum(number in ids for number in hostile.suffix) == sum(number in ids for number in plain.suffix)
