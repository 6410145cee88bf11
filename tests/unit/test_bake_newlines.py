"""Newlines, byte order marks and empty files: an editor's habits change no artifact."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import bake, encoder, smollm2, write

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.compile import compile_class
from fafo_build.project.declaration import Message
from fafo_build.project.load import load_project
from tests.helpers import MAIN

FILES = {
    "fafo.toml": MAIN,
    "classes/ask.toml": (
        'sources = ["facts"]\n[vars]\nrules = """\nOne.\nTwo."""\n[examples]\npath = "shots.jsonl"\n'
        '[[message]]\nrole = "system"\nprompt = "system.md"\n'
        '[[message]]\nrole = "user"\ncontent = """\n{{ examples[0].q }}\n\nFact:\n{{ item.text }}\n"""\n'
    ),
    "prompts/system.md": "{% include 'common.md' %}\n\n{{ rules }}\n{# a\ncomment #}End.\n",
    "prompts/common.md": "Be brief.\nAsk.\n",
    "shots.jsonl": '{"q": "one\\ntwo"}\n\n{"q": "b"}\n',
}
PREFIX = (
    "<|im_start|>system\nBe brief.\nAsk.\n\nOne.\nTwo.\nEnd.<|im_end|>\n<|im_start|>user\none\ntwo\n\nFact:"
)


def baked(root: Path, files: dict[str, str]) -> Artifact:
    write(root, files)
    project = load_project(root, {})
    return compile_class(project, project.classes["ask"], smollm2())


def test_line_feeds(tmp_path: Path) -> None:
    artifact = baked(tmp_path, FILES)
    assert artifact.spans[0].text == PREFIX
    # The newline before the closing quotes is the one that is dropped.
    assert artifact.spans[-1].text == "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_other_newlines_give_the_same_artifact(tmp_path: Path, newline: str) -> None:
    # A lone carriage return ends no line of TOML or JSONL.
    names = FILES if newline == "\r\n" else [name for name in FILES if name.startswith("prompts/")]
    changed = FILES | {name: FILES[name].replace("\n", newline) for name in names}
    assert baked(tmp_path / "a", changed).hash == baked(tmp_path / "b", FILES).hash


def test_byte_order_marks_of_prompts_and_examples_give_the_same_artifact(tmp_path: Path) -> None:
    changed = FILES | {name: "\ufeff" + FILES[name] for name in FILES if not name.endswith(".toml")}
    assert baked(tmp_path / "a", changed).hash == baked(tmp_path / "b", FILES).hash


@pytest.mark.parametrize("ends", ["", "\n"])
def test_one_newline_at_the_end_of_a_file_is_dropped_and_a_second_one_stays(
    tmp_path: Path, ends: str
) -> None:
    artifact = baked(tmp_path / "a", FILES | {"prompts/system.md": "Be brief." + ends})
    assert artifact.spans[0].text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    artifact = baked(tmp_path / "b", FILES | {"prompts/system.md": "Be brief.\n\n"})
    assert artifact.spans[0].text.startswith("<|im_start|>system\nBe brief.\n<|im_end|>\n")


@pytest.mark.parametrize("format", ["raw", "completion"])
def test_a_text_that_goes_on_keeps_the_newline_at_its_end(tmp_path: Path, format: str) -> None:
    texts = [(None, "Begin\n"), (None, "{{ item.text }}\n"), (None, "End\n")]
    artifact = bake(tmp_path, *texts, format=format)
    prompt = encoder(artifact).encode({"text": "x"}, "rows", "1")
    assert smollm2().encoder.decode([*artifact.prefix, *prompt.suffix]) == "Begin\nx\nEnd\n"


def test_a_prefill_keeps_the_newline_at_its_end(tmp_path: Path) -> None:
    prefill = Message("assistant", content="```json\n", prefill=True)
    artifact = bake(tmp_path, ("user", "{{ item.text }}\n"), prefill)
    assert artifact.spans[-1].text.endswith("<|im_end|>\n<|im_start|>assistant\n```json\n")


@pytest.mark.parametrize("content", ["", "\n", "\ufeff", "{# nothing #}\n"])
def test_an_empty_prompt_leaves_its_turn(tmp_path: Path, content: str) -> None:
    artifact = baked(tmp_path, FILES | {"prompts/system.md": content})
    assert artifact.spans[0].text.startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user\none")


def test_newlines_of_values_stay(tmp_path: Path) -> None:
    files = FILES | {
        "prompts/system.md": "{{ rules }}|{{ examples[0].q }}",
        "shots.jsonl": '{"q": "a\\r\\n"}',
    }
    files["classes/ask.toml"] = FILES["classes/ask.toml"].replace('Two."""', 'Two.\\r\\n\n"""')
    assert (
        baked(tmp_path, files)
        .spans[0]
        .text.startswith("<|im_start|>system\nOne.\nTwo.\r\n\n|a\r\n<|im_end|>")
    )


def test_tags_as_text(tmp_path: Path) -> None:
    text = "{% raw %}{{ a }} {% b %}{% endraw %} {{ '{{' }} {{ '{%' }} \\frac{1}{2} {#- gone -#}  é 日本 🙂"
    artifact = baked(tmp_path, FILES | {"prompts/system.md": text})
    told = "<|im_start|>system\n{{ a }} {% b %} {{ {% \\frac{1}{2}é 日本 🙂<|im_end|>"
    assert artifact.spans[0].text.startswith(told)
