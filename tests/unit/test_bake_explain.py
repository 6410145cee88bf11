"""An explanation says what the artifact says, and its advice brings what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from bake_kit import LLAMA3_CHAT, bake, project, prompt_class, smollm2, write

from fafo_build.bake.artifact import ModelFingerprint
from fafo_build.bake.compile import compile_class
from fafo_build.bake.examples import read_examples
from fafo_build.bake.explain import explain
from fafo_build.bake.explanation import Advice, Explanation, Subject
from fafo_build.project.declaration import ClassFormat, Message
from fafo_build.render.sources import gather

Turn = tuple[str, str] | Message
RULES = "Never use more than twenty words, and never begin with an article."


def subject(
    root: Path, *messages: Turn, template: str | None = None, format: ClassFormat = "chat", **options: Any
) -> Subject:
    declared = evolve(prompt_class(root, *messages, **options), format=format)
    made = project(root, declared)
    model = smollm2(template)
    artifact = compile_class(made, declared, model)
    return Subject(declared, gather(made, declared), read_examples(made, declared), artifact, model.encoder)


def explained(root: Path, *messages: Turn, **options: Any) -> Explanation:
    return explain(subject(root, *messages, **options), {})


def parts(found: Explanation) -> list[tuple[str, str]]:
    return [(part.kind, part.text) for part in found.parts]


def only(found: Explanation) -> Advice:
    (advice,) = found.advice
    return advice


def test_the_parts_of_a_conversation(tmp_path: Path) -> None:
    found = explained(
        tmp_path, ("system", "Be brief."), ("user", "Fact: {{ item.text }}\nExplain {{ item.n }}")
    )
    assert parts(found) == [
        ("prefix", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFact:"),
        ("glue", " "),
        ("hole", "{{ item.text }}"),
        ("late", "\nExplain "),
        ("hole", "{{ item.n }}"),
        ("tail", "<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert [part.tokens for part in found.parts] == [13, 1, None, 3, None, 6]
    assert [part.message for part in found.parts] == [None, None, 1, 1, 1, None]
    boundary = found.boundary
    assert (boundary.reason, boundary.last, boundary.glue, boundary.glue_tokens) == ("piece", ":", " ", 1)
    assert found.advice == ()


def test_parts_and_counts_are_those_of_the_artifact(tmp_path: Path) -> None:
    made = subject(
        tmp_path, ("user", "One {{ item.a }}."), ("assistant", "Two."), ("user", "Three {{ item.b }} four")
    )
    found = explain(made, {})
    spans = [(part.text, part.tokens) for part in found.parts if part.kind in ("prefix", "span", "tail")]
    assert spans == [(span.text, len(span.ids)) for span in made.artifact.spans]
    assert [part.text for part in found.parts if part.kind == "glue"] == [
        part for slot in made.artifact.slots for part in slot.parts if isinstance(part, str)
    ]


def test_a_prefix_that_ends_after_a_special_token_costs_nothing(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_end|>"
    found = explained(tmp_path, ("system", "Be brief."), ("user", "{{ item.text }}"), template=template)
    boundary = found.boundary
    assert (boundary.reason, boundary.last) == ("special token", "<|im_start|>")
    assert (boundary.glue, boundary.glue_tokens) == ("", 0)


def gain(root: Path, now: tuple[Turn, ...], then: tuple[Turn, ...], **options: Any) -> int:
    """Return how much longer the prefix really gets."""
    return len(bake(root, *then, **options).prefix) - len(bake(root, *now, **options).prefix)


def test_constant_text_after_a_hole(tmp_path: Path) -> None:
    now = ("user", "Fact: {{ item.text }}\n\n" + RULES)
    advice = only(explained(tmp_path, now))
    assert (advice.kind, advice.message, advice.hole, advice.text) == ("text", 0, "{{ item.text }}", RULES)
    then = ("user", f"Fact: \n\n{RULES}{{{{ item.text }}}}")
    assert abs(advice.tokens - gain(tmp_path, (now,), (then,))) <= 2


def test_examples_after_a_hole_with_the_names_that_they_need(tmp_path: Path) -> None:
    loop = "{% for e in examples %}{{ mark }} {{ e.q }} {{ quoted(e.q) }}\n{% endfor %}"
    names = "{% set mark = 'Example:' %}{% macro quoted(x) %}({{ x }}){% endmacro %}"
    now = ("user", f"{names}Fact: {{{{ item.text }}}}\n{loop}")
    examples = ['{"q": "Why is the sky blue?"}', '{"q": "Why is the sea salty?"}']
    advice = only(explained(tmp_path, now, examples=examples))
    assert advice.kind == "text"
    assert advice.text.startswith("Example: Why is the sky blue? (Why is the sky blue?)")
    then = ("user", f"{names}Fact: \n{loop}{{{{ item.text }}}}")
    assert abs(advice.tokens - gain(tmp_path, (now,), (then,), examples=examples)) <= 3


def test_constant_messages_after_a_hole(tmp_path: Path) -> None:
    now = (
        ("system", "You speak {{ item.language }}."),
        ("user", RULES),
        ("assistant", "Understood, I will."),
        ("user", "Then explain: {{ item.text }}"),
    )
    found = explained(tmp_path, *now)
    advice = only(found)
    assert (advice.kind, advice.message, advice.messages) == ("message", 0, (1, 2, 3))
    assert advice.text == f"{RULES} … Understood, I will. … Then explain:"
    then = (("system", "You speak"), *now[1:3], ("user", "Then explain: {{ item.text }} {{ item.language }}"))
    assert 0 <= gain(tmp_path, now, then) - advice.tokens <= 3 * 6, "and the chat's own tokens between them"


def test_only_messages_up_to_the_next_hole_count(tmp_path: Path) -> None:
    advice = only(
        explained(
            tmp_path,
            ("user", "About {{ item.a }}"),
            ("assistant", RULES),
            ("user", "{{ item.b }}"),
            ("assistant", RULES),
            ("user", "{{ item.c }}"),
        )
    )
    assert advice.messages == (1,)


def test_nothing_comes_after_the_beginning_of_the_answer(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/rules.md": RULES})
    prefill = Message("assistant", prompt="rules.md", prefill=True)
    found = explained(tmp_path, ("user", "Fact: {{ item.text }}"), prefill)
    assert found.parts[-1].text.endswith(RULES)
    assert found.advice == ()


def test_white_space_that_a_chat_template_trims_belongs_to_the_boundary(tmp_path: Path) -> None:
    found = explained(tmp_path, ("user", "Fact: {{ item.text }} Well?"), template=LLAMA3_CHAT)
    assert parts(found)[1:3] == [("glue", ": "), ("hole", "{{ item.text }}")], "an empty text may follow"
    assert (found.boundary.last, found.boundary.glue, found.boundary.glue_tokens) == ("Fact", ": ", 2)


def test_what_a_chat_template_shows_only_with_a_text_is_glue(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{% if m.content %}> {{ m.content }}{% endif %}{% endfor %}"
    found = explained(tmp_path, ("system", "Be brief."), ("user", "{{ item.text }}"), template=template)
    assert parts(found) == [
        ("prefix", "<|im_start|>> Be brief.<|im_start|>"),
        ("glue", "> "),
        ("hole", "{{ item.text }}"),
        ("tail", ""),
    ]


def test_a_chat_template_that_shows_messages_in_another_order(tmp_path: Path) -> None:
    template = "{% for m in messages | reverse %}<|im_start|>{{ m.content }}{% endfor %}<|im_end|>"
    found = explained(
        tmp_path,
        ("system", "You {{ item.a }}"),
        ("user", RULES),
        ("user", "I {{ item.b }}"),
        template=template,
    )
    assert [part.text for part in found.parts if part.kind == "hole"] == ["{{ item.b }}", "{{ item.a }}"]
    assert found.advice == ()


def test_a_class_without_a_chat(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/a.md": "Q: {{ item.text }}\n", "prompts/b.md": RULES})
    found = explained(tmp_path, Message(prompt="a.md"), Message(prompt="b.md"), format="raw")
    assert parts(found)[:3] == [("prefix", "Q:"), ("glue", " "), ("hole", "{{ item.text }}")]
    assert (only(found).kind, only(found).messages, only(found).text) == ("message", (1,), RULES)


def test_constant_text_inside_a_block_that_looks_at_the_item(tmp_path: Path) -> None:
    block = "{% if item.hard %}Think twice. " + RULES + "{% else %}Be quick.{% endif %}"
    advice = only(explained(tmp_path, ("user", "Fact: " + block + " {{ item.text }}")))
    assert (advice.kind, advice.message, advice.hole) == ("block", 0, block)
    assert RULES in advice.text and "Be quick." in advice.text
    assert advice.tokens == len(smollm2().encoder.plain("Think twice. " + RULES + "Be quick."))


def test_a_name_set_from_the_item_ends_the_prefix_before_anything_is_shown(tmp_path: Path) -> None:
    found = explained(tmp_path, ("user", "Fact: {% set t = item.text | trim %}" + RULES + " {{ t }}"))
    advice = only(found)
    assert (advice.kind, advice.hole, advice.text) == ("text", "{% set t = item.text | trim %}", RULES)


def test_a_hole_inside_an_included_prompt(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/ask.md": "Fact: {{ item.text }}\n" + RULES})
    found = explained(tmp_path, ("user", "Hello. {% include 'ask.md' %}"))
    assert ("hole", "{{ item.text }}") in parts(found)
    assert (only(found).kind, only(found).text) == ("text", RULES)


def test_a_condition_on_constants_is_no_hole(tmp_path: Path) -> None:
    source = "{% if vars.kind == 'a' %}Yes.{% else %}{{ item.no }}{% endif %} Fact: {{ item.text }}"
    found = explained(tmp_path, ("user", source), vars={"kind": "a"})
    assert [text for kind, text in parts(found) if kind == "hole"] == ["{{ item.text }}"]


@pytest.mark.parametrize(
    "source",
    [
        "{% extends 'base.md' %}{% block a %}{{ item.x }}{% endblock %}",
        "A: {{ self.b() }}{{ item.a }}{% block b %}x{% endblock %} " + RULES,
    ],
)
def test_what_cant_be_cut_is_still_explained(tmp_path: Path, source: str) -> None:
    write(tmp_path, {"prompts/base.md": "Fact: {% block a %}{% endblock %} end"})
    found = explained(tmp_path, ("user", source))
    assert ("hole", "‹hole 1›") in parts(found)
    assert found.advice == ()


@pytest.mark.parametrize(
    "source",
    [
        "A: {{ item.a }}{{ self.b() }}{% block b %}x{% endblock %} " + RULES,
        "{% set z = 1 %}A: {% if item.a %}{% set z = 2 %}{% endif %}{{ z }} " + RULES,
        "{% set n = namespace(x='') %}A: {% set n.x = item.a %}{{ n.x }} " + RULES,
    ],
)
def test_templates_whose_parts_need_each_other(tmp_path: Path, source: str) -> None:
    found = explained(tmp_path, ("user", source))
    assert "‹hole 1›" not in [part.text for part in found.parts]
    assert only(found).text.endswith(RULES)


COMMON = " ".join(f"Rule {at}: be as good as rule {at + 1}." for at in range(9))


def test_a_fragment_that_other_classes_have_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/common.md": COMMON})
    own = subject(tmp_path, ("system", "You ask.\n{% include 'common.md' %}"), ("user", "{{ item.a }}"))
    other = bake(
        tmp_path, ("system", "Explain it, please.\n" + COMMON), ("user", "{{ item.b }}"), name="other"
    )
    foreign = evolve(other, model=ModelFingerprint("another", None, "00" * 32))
    again = bake(tmp_path, ("system", "You ask.\n" + COMMON), ("user", "Now {{ item.b }}"), name="again")
    advice = only(explain(own, {"other": other, "foreign": foreign, "again": again}))
    assert (advice.kind, advice.classes) == ("fragment", ("other",)), "again shares it in the cache already"
    assert advice.prompts == ("prompts/common.md",)
    assert COMMON in advice.text
    common = len(smollm2().encoder.plain(COMMON))
    assert common - 2 <= advice.tokens <= common + 10


def test_what_brings_most_comes_first(tmp_path: Path) -> None:
    found = explained(
        tmp_path, ("system", "You speak {{ item.l }}. " + RULES), ("user", RULES * 2 + " {{ item.text }}")
    )
    assert [advice.kind for advice in found.advice] == ["message", "text"]
