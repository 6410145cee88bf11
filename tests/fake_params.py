"""What the stand-in for SGLang says of sampling parameters: what 0.5.23 refuses, in its words."""

from __future__ import annotations

from typing import Any

KNOWN: dict[str, type | tuple[type, ...]] = {
    "max_new_tokens": int, "stop": (str, list), "stop_token_ids": list, "stop_regex": (str, list),
    "temperature": (int, float), "top_p": (int, float), "top_k": int, "min_p": (int, float),
    "frequency_penalty": (int, float), "presence_penalty": (int, float), "repetition_penalty": (int, float),
    "min_new_tokens": int, "n": int, "json_schema": str, "regex": str, "ebnf": str, "structural_tag": str,
    "ignore_eos": bool, "skip_special_tokens": bool, "no_stop_trim": bool, "sampling_seed": int,
}  # fmt: skip
"""Sampling parameters and the types of their values; null is always taken for the default."""
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
RANGES = {"frequency_penalty": (-2, 2), "presence_penalty": (-2, 2), "min_p": (0, 1)}


def wrong(params: dict[str, Any], server_info: dict[str, Any]) -> str | None:
    """Return what the real server says of such parameters."""
    for name, value in params.items():
        if value is not None and not isinstance(value, KNOWN[name]):
            return f"Expected `{KNOWN[name]}`, got `{type(value).__name__}` - at `$.{name}`"
    for name, (least, most) in RANGES.items():
        if not least <= params.get(name, 0) <= most:
            return f"{name} must be in [{least}, {most}], got {params[name]}."
    if not 0 < params.get("repetition_penalty", 1.0) <= 2:
        return "repetition_penalty must be in (0, 2] (1.0 = no penalty)"
    if not 0 < params.get("top_p", 1.0) <= 1:
        return "top_p must be in (0, 1]"
    forms = [name for name in GRAMMARS if params.get(name)]
    if len(forms) > 1:
        return "Only one of json_schema, regex, ebnf, or structural_tag can be set."
    if forms and server_info["grammar_backend"] == "none":
        return "Grammar-based generation is not supported when launched with --grammar-backend none"
    stops = params.get("stop") or []
    if stops and server_info["skip_tokenizer_init"]:
        return f"stop={stops!r} is unavailable when skip_tokenizer_init=True"
    return "at most 32 stop strings are allowed" if isinstance(stops, list) and len(stops) > 32 else None
