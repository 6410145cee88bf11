"""`config.json` and `generation_config.json` of a GGUF file, from its metadata; it reads no weights.

Only the plain `llama` architecture is converted: whatever a file has beyond it is refused, since a config
that leaves something out gives wrong answers, not errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fafo_build.errors import ModelError, Problem
from fafo_build.tokens.gguf_file import GgufFile

_CURE = "use a folder in the Hugging Face format (config.json, tokenizer.json, *.safetensors)"
_PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def config(gguf: GgufFile, shown: str) -> dict[str, Any]:
    """Return the content of config.json.

    Raises `ModelError` for another architecture, a missing key, and anything that plain llama hasn't.
    """
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise _error(shown, f'has the architecture "{architecture}"; fafo converts only "llama"')
    keys = _Keys(gguf, shown)
    hidden, heads = keys.int("embedding_length"), keys.int("attention.head_count")
    head_dim = keys.int("attention.key_length", hidden // heads)
    _refuse_extras(keys, head_dim, shown)
    shapes = {tensor.name: tensor.shape for tensor in gguf.tensors}
    if "token_embd.weight" not in shapes:
        raise _error(shown, "has no tensor token_embd.weight")
    content: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": keys.int("feed_forward_length"),
        "max_position_embeddings": keys.int("context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": keys.int("block_count"),
        "num_key_value_heads": keys.int("attention.head_count_kv", heads),
        "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.float("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in shapes,
        "torch_dtype": "bfloat16",
        "vocab_size": shapes["token_embd.weight"][0],
        **_token_ids(gguf),
    }
    _check_tensors(shapes, content, shown)
    return content


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the content of generation_config.json: which ids begin, end and pad."""
    return _token_ids(gguf)


def tensor_names(content: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return, for a config, every tensor's GGUF name -> (name in transformers, shape)."""
    hidden, inner = content["hidden_size"], content["intermediate_size"]
    queries = content["num_attention_heads"] * content["head_dim"]
    values = content["num_key_value_heads"] * content["head_dim"]
    shapes = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (values, hidden),
        "attn_v": (values, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    table = (content["vocab_size"], hidden)
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", table),
        "output_norm.weight": ("model.norm.weight", (hidden,)),
    }
    if not content["tie_word_embeddings"]:
        names["output.weight"] = ("lm_head.weight", table)
    for layer in range(content["num_hidden_layers"]):
        for short, long in _PER_LAYER.items():
            names[f"blk.{layer}.{short}.weight"] = (f"model.layers.{layer}.{long}.weight", shapes[short])
    return names


class _Keys:
    """The `llama.*` numbers of the metadata."""

    def __init__(self, gguf: GgufFile, shown: str) -> None:
        self._metadata, self._shown = gguf.metadata, shown

    def get(self, key: str) -> Any:
        return self._metadata.get(f"llama.{key}")

    def int(self, key: str, default: int | None = None) -> int:
        value = self._number(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _error(self._shown, f"says llama.{key} = {value!r}, which is no whole number above 0")
        return value

    def float(self, key: str, default: float | None = None) -> float:
        value = self._number(key, default)
        if not isinstance(value, int | float) or not value > 0:
            raise _error(self._shown, f"says llama.{key} = {value!r}, which is no number above 0")
        return float(value)

    def _number(self, key: str, default: Any) -> Any:
        value = self._metadata.get(f"llama.{key}", default)
        if value is None:
            raise _error(self._shown, f"has no llama.{key} in its metadata")
        return value


def _token_ids(gguf: GgufFile) -> dict[str, Any]:
    get = gguf.metadata.get
    ids: dict[str, Any] = {}
    for name, key in (("bos", "bos_token_id"), ("pad", "padding_token_id")):
        if (token := get(f"tokenizer.ggml.{key}")) is not None:
            ids[f"{name}_token_id"] = token
    # A turn can end with a token of its own (eot), besides the text's end.
    ends = [get("tokenizer.ggml.eos_token_id"), get("tokenizer.ggml.eot_token_id")]
    known = list(dict.fromkeys(end for end in ends if end is not None))
    if known:
        ids["eos_token_id"] = known[0] if len(known) == 1 else known
    return ids


def _refuse_extras(keys: _Keys, head_dim: int, shown: str) -> None:
    scaling = keys.get("rope.scaling.type")
    if scaling not in (None, "none"):
        raise _error(shown, f'scales its positions ("{scaling}"), which fafo doesn\'t convert')
    if keys.get("expert_count"):
        raise _error(shown, "is a mixture of experts, which fafo doesn't convert")
    if keys.int("rope.dimension_count", head_dim) != head_dim:
        raise _error(shown, "rotates only a part of each head, which fafo doesn't convert")
    if keys.int("attention.value_length", head_dim) != head_dim:
        raise _error(shown, "has keys and values of different lengths, which fafo doesn't convert")


def _check_tensors(shapes: dict[str, tuple[int, ...]], content: Mapping[str, Any], shown: str) -> None:
    expected = tensor_names(content)
    for name, shape in shapes.items():
        if name not in expected:
            raise _error(shown, f"has a tensor {name}, which a plain llama hasn't")
        if shape != expected[name][1]:
            raise _error(shown, f"has a tensor {name} of shape {shape}, expected {expected[name][1]}")
    if missing := sorted(set(expected) - set(shapes)):
        raise _error(shown, f"lacks the tensor {missing[0]}")


def _error(shown: str, what: str) -> ModelError:
    return ModelError(Problem(f"the model file {shown} {what}", field="model.path", cure=_CURE))
