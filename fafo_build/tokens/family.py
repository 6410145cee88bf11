"""Which kinds of tokenizers can be baked: those for which cutting a text at its pre-tokens is proven to be
safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def why_unproven(content: Mapping[str, Any]) -> str | None:
    """Say what in a tokenizer's JSON makes it another kind than byte-level BPE; None when nothing does."""
    return next(_reasons(content), None)


def _reasons(content: Mapping[str, Any]) -> Iterator[str]:
    model = content["model"]
    # Old files of the library leave the type out.
    kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        yield f"its model is {kind}"
    if model.get("byte_fallback"):
        yield "it falls back to bytes (SentencePiece)"
    if model.get("dropout"):
        yield f"its merges are random (dropout {model['dropout']})"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        yield "it marks parts of words"
    if content.get("normalizer") is not None:
        yield f"it changes text before it encodes it (normalizer {content['normalizer']['type']})"
    levels = [part for part in _parts(content.get("pre_tokenizer")) if part["type"] == "ByteLevel"]
    if not levels:
        yield "it has no ByteLevel pre-tokenizer"
    if any(part.get("add_prefix_space", True) for part in levels):
        yield "it puts a space before the text (add_prefix_space)"
    for token in content["added_tokens"]:
        for option in ("lstrip", "rstrip", "single_word"):
            if token[option]:
                yield f"its token {token['content']} has the option {option}"


def _parts(pre_tokenizer: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [part for inner in pre_tokenizer["pretokenizers"] for part in _parts(inner)]
    return [pre_tokenizer]
