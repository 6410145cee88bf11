"""Writes small GGUF files: a random Llama with a byte-level vocabulary, and any metadata a test wants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
HIDDEN, INNER, HEADS, KEY_HEADS, LAYERS = 64, 96, 4, 2, 2
_SPECIAL = ["<unk>", "<s>", "</s>", "<think>"]
_MERGES = ["h e", "l l", "he ll", "Ġ w", "1 2"]


def tokens() -> list[str]:
    """Return special tokens, the 256 bytes, and what the merges make."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*_SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in _MERGES)]


def metadata() -> dict[str, Any]:
    """Return the metadata of a whole and plain model; GGUF's types are chosen by `write`."""
    vocabulary = tokens()
    return {
        "llama.context_length": 256,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [2, 3, 3, 4] + [1] * (len(vocabulary) - 4),
        "tokenizer.ggml.merges": _MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def weights(*, tied: bool = True) -> dict[str, np.ndarray]:
    """Return random tensors under their GGUF names."""
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    vocabulary, keys = len(tokens()), KEY_HEADS * HIDDEN // HEADS
    named = {"token_embd.weight": matrix(vocabulary, HIDDEN), "output_norm.weight": 1 + matrix(HIDDEN)}
    if not tied:
        named["output.weight"] = matrix(vocabulary, HIDDEN)
    for layer in range(LAYERS):
        named |= {
            f"blk.{layer}.{name}.weight": tensor
            for name, tensor in {
                "attn_norm": 1 + matrix(HIDDEN),
                "attn_q": matrix(HIDDEN, HIDDEN),
                "attn_k": matrix(keys, HIDDEN),
                "attn_v": matrix(keys, HIDDEN),
                "attn_output": matrix(HIDDEN, HIDDEN),
                "ffn_norm": 1 + matrix(HIDDEN),
                "ffn_gate": matrix(INNER, HIDDEN),
                "ffn_up": matrix(INNER, HIDDEN),
                "ffn_down": matrix(HIDDEN, INNER),
            }.items()
        }
    return named


def write(
    path: Path,
    *,
    change: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    quantised: bool = False,
    architecture: str = "llama",
) -> Path:
    """Write a model; `change` replaces metadata (None removes a key), `tensors` the weights."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, architecture)
    for key, value in (metadata() | dict(change or {})).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    for name, tensor in (weights() if tensors is None else tensors).items():
        if quantised and tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
