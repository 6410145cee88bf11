"""Real chat templates in their variety: the ids are those of `apply_chat_template`, or the build says which
text can't be reproduced, and why.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import encoder, project, prompt_class
from chat_styles import SHAPES, STYLES, TEMPLATES, canonical, items, model_of

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.compile import compile_class
from fafo_build.errors import BakeError
from fafo_build.project.declaration import Message

_SYSTEM_SHAPES = ("system_user", "system_few_shot", "hole_in_system", "two_holes")
_ROLES = "the chat template refuses the conversation: "

_REASONING = "with the text '</think>' in this message, the chat template "
_TOOL = "with the text '<tool_response>x</tool_response>' in this message, the chat template changes the text"
_QWEN3 = ("qwen3", "qwen3_thinking", "qwen3_not_thinking")

REFUSED: dict[tuple[str, str], str] = {
    **{("gemma", shape): _ROLES + "System role not supported" for shape in _SYSTEM_SHAPES},
    # An empty system message lets the trim reach the user's.
    ("joined_trim", "two_holes"): "with the text '' in this message, the chat template changes the text",
    # What comes before `</think>` is cut off, in answers.
    **{
        (style, shape): _REASONING
        for style in ("deepseek_r1", "glm4", *_QWEN3)
        for shape in ("hole_in_assistant", "hole_in_prefill")
    },
    # A user's message that looks like a tool's puts the beginning of the answer into another part of it.
    **{(style, "prefill"): _TOOL for style in _QWEN3},
}
"""Style and shape to what the build says. Everything else must bake."""

FILES = sorted(TEMPLATES.glob("*.jinja"))
FAST = "two_holes"


def made(root: Path, style: str, shape: str, hole: str = "{{ item.text }}") -> Artifact:
    used = STYLES[style]
    messages = [
        Message("assistant", content=content, prefill=True)
        if role == "prefill"
        else Message(role, content=content.replace("{{ item.text }}", hole))  # type: ignore[arg-type]
        for role, content in SHAPES[shape]
    ]
    declared = prompt_class(root, *messages, kwargs=used.kwargs)
    return compile_class(project(root, declared), declared, model_of(style))


def compare(root: Path, style: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(style)
    artifact = made(root, style, shape)
    prompts = encoder(artifact, model)
    control = model.encoder.control
    benign = 0
    compared = 0
    for text in ["benign", *items(style)]:
        rendered, want = canonical(style, SHAPES[shape], text, monkeypatch)
        row = {"text": text}
        prompt = prompts.encode(row, "", "")
        got = [*artifact.prefix, *prompt.suffix]
        assert prompts.text(row, "", "") == rendered, ascii(text)
        assert prompts.recheck(row, "", "", prompt)
        if text == "benign":
            benign = model.encoder.count_control(got)
        assert model.encoder.count_control(got) == benign, "text of an item is never a control token"
        if not any(token in text for token in control):
            assert got == want, ascii(text)
            compared += 1
    assert compared > 80


def is_fast(style: str, shape: str) -> bool:
    return (style, shape) in REFUSED or (shape == FAST and style in {path.stem for path in FILES})


CASES = [(style, shape) for style in STYLES for shape in SHAPES]


@pytest.mark.parametrize(
    ("style", "shape"),
    [pytest.param(*case, marks=() if is_fast(*case) else pytest.mark.slow) for case in CASES],
)
def test_ids_are_the_models_own_or_the_build_says_why(
    tmp_path: Path, style: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = REFUSED.get((style, shape))
    if refusal is None:
        compare(tmp_path, style, shape, monkeypatch)
        return
    with pytest.raises(BakeError) as caught:
        made(tmp_path, style, shape)
    (problem,) = caught.value.problems
    assert refusal in problem.message
    assert problem.file == "classes/exam.toml"
    assert problem.cure


@pytest.mark.parametrize(
    "style",
    [pytest.param(style, marks=() if style in ("llama3", "qwen3") else pytest.mark.slow) for style in STYLES],
)
def test_special_tokens_that_are_asked_for_are_the_models_own(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = made(tmp_path, style, "few_shot", "{{ item.text | hole(special_tokens=true) }}")
    prompts = encoder(artifact, model_of(style))
    brought = 0
    for text in items(style):
        _, want = canonical(style, SHAPES["few_shot"], text, monkeypatch)
        assert [*artifact.prefix, *prompts.encode({"text": text}, "", "").suffix] == want, ascii(text)
        brought += any(token in text for token in STYLES[style].tokens)
    assert brought > 10


def test_every_template_has_a_style() -> None:
    assert {path.stem for path in FILES} == {style.file for style in STYLES.values()}
