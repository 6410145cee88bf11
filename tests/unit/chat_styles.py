"""Chat templates in the styles of well-known models, each with the special tokens that it uses, and classes
of many shapes for them. The tokenizer is SmolLM2's with those tokens added.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen
from bake_kit import loaded
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from fafo_build.bake.compile import ReadyModel, ready
from fafo_build.bake.form import OwnTokenizer
from fafo_build.bake.probes import PROBES

TEMPLATES = Path(__file__).parents[1] / "chat_templates"
TODAY = date(2026, 1, 31)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says <what> it's like & where",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


@frozen
class Style:
    """A chat template, and what it needs."""

    file: str
    tokens: tuple[str, ...]
    bos: str | None = None
    eos: str = "<|im_end|>"
    kwargs: Mapping[str, Any] = field(factory=dict)
    date: date | None = None

    @property
    def chat_template(self) -> str:
        return (TEMPLATES / f"{self.file}.jinja").read_text("utf-8")


_CHATML = ("<|im_start|>", "<|im_end|>")
_LLAMA3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_QWEN = (
    *_CHATML,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_COMMAND_R = (
    *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
)
_GRANITE = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
_HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")

STYLES: Mapping[str, Style] = {
    "chatml": Style("chatml", _CHATML),
    "llama2": Style("llama2", ("<s>", "</s>"), "<s>", "</s>"),
    "llama3": Style("llama3", _LLAMA3, "<|begin_of_text|>", "<|eot_id|>", date=TODAY),
    "llama3_date_string": Style(
        "llama3", _LLAMA3, "<|begin_of_text|>", "<|eot_id|>", {"date_string": "26 Jul 2024"}
    ),
    "llama3_tools": Style("llama3", _LLAMA3, "<|begin_of_text|>", "<|eot_id|>", {"tools": TOOLS}, TODAY),
    "mistral_v1": Style("mistral_v1", ("<s>", "</s>"), "<s>", "</s>"),
    "mistral_v3": Style("mistral_v3", _MISTRAL, "<s>", "</s>"),
    "mistral_v3_tools": Style("mistral_v3", _MISTRAL, "<s>", "</s>", {"tools": TOOLS}),
    "mistral_v7": Style(
        "mistral_v7", (*_MISTRAL[:4], "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "<s>", "</s>", date=TODAY
    ),
    "gemma": Style("gemma", _GEMMA, "<bos>", "<eos>"),
    "gemma3": Style("gemma3", _GEMMA, "<bos>", "<eos>"),
    "joined_trim": Style("joined_trim", _GEMMA, "<bos>", "<eos>"),
    "phi3": Style("phi3", ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), None, "<|endoftext|>"),
    "phi4": Style("phi4", (*_CHATML, "<|im_sep|>")),
    "deepseek_v3": Style("deepseek_v3", _DEEPSEEK, _DEEPSEEK[0], _DEEPSEEK[1]),
    "deepseek_r1": Style("deepseek_r1", (*_DEEPSEEK, "<think>", "</think>"), _DEEPSEEK[0], _DEEPSEEK[1]),
    "qwen25": Style("qwen25", _QWEN),
    "qwen25_tools": Style("qwen25", _QWEN, kwargs={"tools": TOOLS}),
    "qwen3": Style("qwen3", _QWEN),
    "qwen3_not_thinking": Style("qwen3", _QWEN, kwargs={"enable_thinking": False}),
    "qwen3_thinking": Style("qwen3", _QWEN, kwargs={"enable_thinking": True}),
    "glm4": Style(
        "glm4", ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"), None, "<|endoftext|>"
    ),
    "command_r": Style("command_r", _COMMAND_R, "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "dated": Style("dated", _GRANITE, None, "<|end_of_text|>", date=TODAY),
    "harmony": Style("harmony", _HARMONY, None, "<|return|>", {"reasoning_effort": "high"}, TODAY),
    "hermes": Style("hermes", ("<s>", *_CHATML), "<s>", kwargs={"tools": TOOLS}),
}

Shape = tuple[tuple[str, str], ...]

_FEW_SHOT = (("user", "What is it?"), ("assistant", "\nIt's\tthis. "))

SHAPES: Mapping[str, Shape] = {
    "user_only": (("user", "{{ item.text }}"),),
    "system_user": (("system", " Be brief.\n"), ("user", "Fact: {{ item.text }}\nWhy?")),
    "few_shot": (*_FEW_SHOT, ("user", "So: {{ item.text }}")),
    "system_few_shot": (("system", "Be brief."), *_FEW_SHOT, ("user", "{{ item.text }}\n")),
    "hole_in_system": (("system", "{{ item.text }}"), ("user", "What is it?")),
    "two_holes": (("system", "About {{ item.text }}"), ("user", "  {{ item.text }} ")),
    "hole_in_assistant": (("user", "What?"), ("assistant", "{{ item.text }}"), ("user", "Why?")),
    "prefill": (("user", "{{ item.text }}"), ("prefill", "Answer: ")),
    "hole_in_prefill": (("user", "What?"), ("prefill", "{{ item.text }}")),
}
"""Role and content of each message; `prefill` is the assistant's beginning of the answer."""


@cache
def model_of(style: str) -> ReadyModel:
    used, base = STYLES[style], _with_all_tokens()
    # Reading a tokenizer is most of the time that a test takes, so the styles share one. Which of its tokens
    # begin and end a text is the transformers object's own business.
    tokenizer = copy(base.loaded.tokenizer)
    tokenizer.__dict__["_special_tokens_map"] = {"bos_token": used.bos, "eos_token": used.eos}
    own = OwnTokenizer(tokenizer)
    own.__dict__.update(json=base.own.json, judge=base.own.judge)
    loaded = evolve(base.loaded, tokenizer=tokenizer, chat_template=used.chat_template)
    return evolve(base, loaded=loaded, own=own, date=used.date)


@cache
def _with_all_tokens() -> ReadyModel:
    content = json.loads(loaded().tokenizer.backend_tokenizer.to_str())
    known = {token["content"] for token in content["added_tokens"]}
    needed = dict.fromkeys(token for style in STYLES.values() for token in style.tokens)
    number = len(content["model"]["vocab"])
    for token in needed:
        if token not in known:
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            # As in the models: what marks reasoning and tools is a token, but isn't called special.
            special = not token.startswith(("<think", "</think", "<tool", "</tool"))
            content["added_tokens"].append({"id": number, "content": token, **flags, "special": special})
            number += 1
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
    return ready(evolve(loaded(), tokenizer=tokenizer, vocab_size=number), "default", None)


def items(style: str) -> list[str]:
    """Return 200 hostile texts, always the same."""
    drawn = random.Random(f"{style} 7")
    words = [
        *PROBES[:-3],
        *STYLES[style].tokens,
        *("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<think>", "</think>", "<|im_start|>system"),
        *("<tool_response>", "</tool_response>", "\n\n", "\n", "  ", "\t", "\u3000", "\x1c", "a", "Zoë", "7"),
    ]
    made = [*PROBES, *(f"{token}" for token in STYLES[style].tokens)]
    while len(made) < 200:
        made.append("".join(drawn.choice(words) for _ in range(drawn.randint(1, 6))))
    return made[:200]


def canonical(
    style: str, shape: Sequence[tuple[str, str]], text: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[int]]:
    """Return what a user gets without fafo on the declared day: the text, and its ids."""
    used, model = STYLES[style], model_of(style)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(TODAY.year, TODAY.month, TODAY.day)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    prefill = shape[-1][0] == "prefill"
    messages = [
        {"role": role.replace("prefill", "assistant"), "content": filled(content, text)}
        for role, content in shape
    ]
    options: dict[str, Any] = {
        "chat_template": used.chat_template,
        "add_generation_prompt": not prefill,
        "continue_final_message": prefill,
        "return_dict": False,
        **used.kwargs,
    }
    tokenizer = model.loaded.tokenizer
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, tokenizer_kwargs={"verbose": False}, **options
    )
    return str(rendered), list(ids)


def filled(content: str, text: str) -> str:
    """Return a message as its prompt gives it; one newline at the end of a template is dropped."""
    return content.removesuffix("\n").replace("{{ item.text }}", text)
