"""`tokenizer.json` and `tokenizer_config.json` of a GGUF file, from its metadata alone.

Built by hand, not by transformers' GGUF loader, which forgets pre-tokenizer rules (the split of digits of
"smollm"). Only pre-tokenizers whose ids were compared with llama.cpp's are accepted; the comparison is
tests/golden/model/.
"""

from __future__ import annotations

from typing import Any

from fafo_build.errors import ModelError, Problem
from fafo_build.tokens.gguf_file import GgufFile

_CURE = "use a folder that has the model's own tokenizer.json"
_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {"smollm": [_DIGITS, _GPT2], "gpt-2": [_GPT2]}
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def tokenizer_json(gguf: GgufFile, shown: str) -> dict[str, Any]:
    """Return the content of tokenizer.json.

    Raises `ModelError` when the file's tokenizer isn't byte-level BPE with a known pre-tokenizer, or its
    parts contradict each other.
    """
    get = gguf.metadata.get
    if (model := get("tokenizer.ggml.model")) != "gpt2":
        raise _error(shown, f'has a "{model}" tokenizer; fafo converts only "gpt2" (byte-level BPE)')
    if (pre := get("tokenizer.ggml.pre")) not in _PRE_TOKENIZERS:
        known = ", ".join(f'"{name}"' for name in sorted(_PRE_TOKENIZERS))
        raise _error(shown, f'has the pre-tokenizer "{pre}"; fafo can prove only {known}')
    if get("tokenizer.ggml.add_space_prefix"):
        raise _error(shown, "puts a space before every text, which fafo doesn't convert for this tokenizer")
    tokens = _tokens(gguf, shown)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(gguf, tokens, shown),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": _post_processor(gguf, tokens, shown),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": _merges(gguf, set(tokens), shown),
        },
    }


def tokenizer_config(gguf: GgufFile, shown: str) -> dict[str, Any]:
    """Return the content of tokenizer_config.json: roles of tokens, chat template, longest input."""
    tokens = _tokens(gguf, shown)
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.metadata.get("llama.context_length"),
    }
    for role, key in _ROLES.items():
        number = gguf.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            content[f"{role}_token"] = _token(tokens, number, f"{key}_token_id", shown)
    if (template := gguf.metadata.get("tokenizer.chat_template")) is not None:
        content["chat_template"] = template
    return content


def _tokens(gguf: GgufFile, shown: str) -> list[str]:
    tokens: list[str] = gguf.metadata.get("tokenizer.ggml.tokens", [])
    if not tokens:
        raise _error(shown, "has no tokens in its metadata")
    if len(set(tokens)) != len(tokens):
        raise _error(shown, "names one token twice")
    return tokens


def _token(tokens: list[str], number: int, key: str, shown: str) -> str:
    if not 0 <= number < len(tokens):
        raise _error(shown, f"says {key} = {number}, but has only {len(tokens)} tokens")
    return tokens[number]


def _added_tokens(gguf: GgufFile, tokens: list[str], shown: str) -> list[dict[str, Any]]:
    kinds = gguf.metadata.get("tokenizer.ggml.token_type", [])
    if len(kinds) != len(tokens):
        raise _error(shown, f"has {len(tokens)} tokens and {len(kinds)} token types")
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def _merges(gguf: GgufFile, tokens: set[str], shown: str) -> list[list[str]]:
    merges = []
    for line in gguf.metadata.get("tokenizer.ggml.merges", []):
        left, _, right = line.partition(" ")
        if not right or not {left, right, left + right} <= tokens:
            raise _error(shown, f'has a merge "{line}" whose parts are no tokens')
        merges.append([left, right])
    return merges


def _post_processor(gguf: GgufFile, tokens: list[str], shown: str) -> dict[str, Any]:
    """Return what adds BOS and EOS to a text, where the metadata wants that."""
    before: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []
    specials: dict[str, Any] = {}
    for role, where in (("bos", before), ("eos", after)):
        if gguf.metadata.get(f"tokenizer.ggml.add_{role}_token"):
            number = gguf.metadata.get(f"tokenizer.ggml.{role}_token_id", -1)
            token = _token(tokens, number, f"{role}_token_id", shown)
            where.append({"SpecialToken": {"id": token, "type_id": 0}})
            specials[token] = {"id": token, "ids": [number], "tokens": [token]}
    if not specials:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return {
        "type": "TemplateProcessing",
        "single": [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after],
        "pair": [
            *before,
            {"Sequence": {"id": "A", "type_id": 0}},
            *after,
            *before,
            {"Sequence": {"id": "B", "type_id": 1}},
            *after,
        ],
        "special_tokens": specials,
    }


def _error(shown: str, what: str) -> ModelError:
    return ModelError(Problem(f"the model file {shown} {what}", field="model.path", cure=_CURE))
