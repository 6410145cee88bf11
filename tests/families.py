"""Models of every family of tokenizers, as folders without weights. Knows nothing of classes.

A folder holds what models have in the field: tokenizer.json (or a SentencePiece model alone), the roles of
the tokens, and a chat template in the family's style. Each is made and loaded once per process.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import frozen

from fafo_build.bake.compile import ReadyModel, ready
from fafo_build.project.declaration import Model
from fafo_build.tokens.model_files import LoadedModel, load_model
from tests import vocabularies as vocabulary
from tests.vocabularies import Content

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}<｜Assistant｜>"
)
ANTHROPIC = (
    "{% for m in messages %}{% if m.role == 'user' %}\n\nHuman: {{ m.content }}"
    "{% elif m.role == 'assistant' %}\n\nAssistant: {{ m.content }}{{ eos_token }}"
    "{% else %}<META_START>{{ m.content }}<META_END>{% endif %}{% endfor %}\n\nAssistant:"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
MISTRAL_V7 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
)
PHI3 = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n"
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
BERT = (
    "[CLS] {% for m in messages %}{{ '[BOT]' if m.role == 'assistant' else '[USER]' }} {{ m.content }} [SEP] "
    "{% endfor %}[BOT]"
)
T5 = (
    "{{ bos_token }}{% for m in messages %}{{ '<bot>' if m.role == 'assistant' else '<user>' }}"
    "{{ m.content }}{{ eos_token }}{% endfor %}<bot>"
)
PLAIN = (
    "{{ bos_token or 'A chat.' }}{% for m in messages %}\n\n### {{ m.role }}:\n{{ m.content }}{% endfor %}"
    "\n\n### assistant:\n"
)
"""Vicuna's and Alpaca's way, for every family: nothing but text, so every cut is a cut in text."""

_ENDS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@frozen
class Family:
    """One kind of tokenizer."""

    content: Callable[[], Content | bytes]
    """Makes the content of tokenizer.json, or the SentencePiece model that the folder holds in its place."""
    chat_template: str
    """In the family's usual style."""
    roles: Mapping[str, str] = {}
    """The texts of bos_token, eos_token and unk_token."""
    settings: Mapping[str, bool] = {}
    """What else tokenizer_config.json says."""


def _mistral(version: str, scheme: vocabulary.Scheme, chat_template: str = MISTRAL) -> Family:
    return Family(partial(vocabulary.mistral, version, scheme), chat_template, _ENDS, {"add_bos_token": True})


FAMILIES: Mapping[str, Family] = {
    # Byte-level BPE.
    "smollm2": Family(vocabulary.smollm2, CHATML, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}),
    "qwen": Family(vocabulary.qwen, CHATML, {"eos_token": "<|im_end|>"}),
    "llama3": Family(
        vocabulary.llama3,
        LLAMA3,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        {"add_bos_token": True},
    ),
    "roberta": Family(vocabulary.roberta, CHATML, {"eos_token": "<|im_end|>"}),
    "deepseek": Family(
        vocabulary.deepseek,
        DEEPSEEK,
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
    "anthropic": Family(vocabulary.anthropic, ANTHROPIC, {"eos_token": "<EOT>"}),
    # tiktoken.
    "cl100k": Family(vocabulary.cl100k, CHATML, {"eos_token": "<|im_end|>"}),
    "tekken": Family(vocabulary.tekken, MISTRAL_V7, _ENDS, {"add_bos_token": True}),
    # SentencePiece BPE, with byte fallback.
    "mistral-v1-prepend": _mistral("v1", "prepend"),
    "mistral-v1-first": _mistral("v1", "first"),
    "mistral-v2-always": _mistral("v2", "always"),
    "mistral-v3-prepend": _mistral("v3", "prepend"),
    "mistral-v7-always": _mistral("v7", "always", MISTRAL_V7),
    "mistral-v7-first": _mistral("v7", "first", MISTRAL_V7),
    "mistral-v3-model-only": Family(lambda: vocabulary.mistral_model("v3").read_bytes(), MISTRAL, _ENDS),
    "phi3": Family(vocabulary.phi3, PHI3, _ENDS),
    "normalized": Family(vocabulary.normalized, MISTRAL, _ENDS, {"add_bos_token": True}),
    "gemma": Family(
        vocabulary.gemma, GEMMA, {"bos_token": "<bos>", "eos_token": "<eos>"}, {"add_bos_token": True}
    ),
    # WordPiece.
    "wordpiece": Family(vocabulary.wordpiece, BERT, {"eos_token": "[SEP]", "unk_token": "[UNK]"}),
    "shouting": Family(vocabulary.shouting, BERT, {"eos_token": "[sep]", "unk_token": "[UNK]"}),
    # Unigram.
    "unigram": Family(vocabulary.unigram, T5, _ENDS),
    "unigram-model-only": Family(vocabulary.unigram_model, T5, _ENDS),
}

QUICK = ("smollm2", "mistral-v1-prepend", "phi3", "wordpiece", "unigram")
"""One family of each kind, for `make test`: making all of them takes minutes."""

_HOME = TemporaryDirectory(prefix="families")
atexit.register(_HOME.cleanup)


def write(family: Family, folder: Path) -> Path:
    """Write a family's model to `folder`, and return it."""
    content = family.content()
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        (folder / "tokenizer.model").write_bytes(content)
    else:
        (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **family.roles, **family.settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (folder / "chat_template.jinja").write_text(family.chat_template, "utf-8")
    config = {"model_type": "llama", "vocab_size": 200_000, "max_position_embeddings": 8192}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@cache
def loaded(name: str) -> LoadedModel:
    """Return a family's model, as the build loads it from a folder."""
    folder = write(FAMILIES[name], Path(_HOME.name, name))
    return load_model(Model("default", str(folder)), Path("/"))


@cache
def model(name: str) -> ReadyModel:
    """Return a family's model, ready for baking with its own chat template."""
    return ready(loaded(name), "default", None)
