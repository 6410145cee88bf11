"""Templates cut at their top level: nothing is lost, and what looks at the item is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import project, prompt_class, write

from fafo_build.project.declaration import Message
from fafo_build.render.message import MessageRenderer
from fafo_build.render.segments import segments, with_source
from fafo_build.render.sources import Prompts, gather
from fafo_build.render.trace import trace

INCLUDED = {
    "prompts/const.md": "Be brief.",
    "prompts/asks.md": "Look: {{ item.text }} Well?",
    "prompts/both.md": "{% include 'const.md' %} {% include 'asks.md' %}",
    "prompts/macros.md": "{% macro f(x) %}<{{ x }}>{% endmacro %}",
    "prompts/base.md": "{% block a %}{% endblock %} end",
}


def prompts(root: Path, content: str) -> Prompts:
    write(root, INCLUDED)
    declared = prompt_class(root, ("user", content))
    return gather(project(root, declared), declared)


def cut(root: Path, content: str) -> list[tuple[str, bool]]:
    found = segments(prompts(root, content), "#message[0]")
    assert found is not None
    return [(segment.source, segment.looks) for segment in found]


def test_text_values_and_blocks(tmp_path: Path) -> None:
    assert cut(tmp_path, "A {{ item.a }}{# no #} b{% if item.c %}c {{ vars.d }}{% else %}e{% endif %} f") == [
        ("A ", False),
        ("{{ item.a }}", True),
        (" b", False),
        ("{% if item.c %}c {{ vars.d }}{% else %}e{% endif %}", True),
        (" f", False),
    ]


def test_a_name_that_was_set_from_the_item_looks_at_it(tmp_path: Path) -> None:
    content = "{% set a = item.a %}{% set b %}{{ a }}{% endset %}{% set c = 1 %}{{ c }}{{ b }}"
    assert [looks for _, looks in cut(tmp_path, content)] == [True, True, False, False, True]


def test_a_namespace_that_was_filled_from_the_item_looks_at_it(tmp_path: Path) -> None:
    content = "{% set n = namespace(a=1) %}{{ n.a }}{% set n.a = item.a %}{{ n.a }}"
    assert [looks for _, looks in cut(tmp_path, content)] == [False, False, True, True]


def test_macros_and_imports(tmp_path: Path) -> None:
    content = "{% from 'macros.md' import f %}{% macro g() %}{{ item.a }}{% endmacro %}{{ f(1) }}{{ g() }}"
    assert [looks for _, looks in cut(tmp_path, content)] == [False, True, False, True]


def test_an_included_prompt_is_opened_where_it_looks_at_the_item(tmp_path: Path) -> None:
    assert cut(tmp_path, "{% include 'const.md' %}! {% include 'both.md' %}") == [
        ("{% include 'const.md' %}", False),
        ("! ", False),
        ("{% include 'const.md' %}", False),
        (" ", False),
        ("Look: ", False),
        ("{{ item.text }}", True),
        (" Well?", False),
    ]


def test_raw_text_and_white_space_control(tmp_path: Path) -> None:
    assert cut(tmp_path, "a  {%- raw %}{{ item }}{% endraw -%}  b {{- item.x -}} c") == [
        ("a", False),
        ("{%- raw %}{{ item }}{% endraw -%}  ", False),
        ("b", False),
        ("{{- item.x -}} ", True),
        ("c", False),
    ]


def test_a_template_that_extends_another_isnt_cut(tmp_path: Path) -> None:
    content = "{% extends 'base.md' %}{% block a %}{{ item.x }}{% endblock %}"
    assert segments(prompts(tmp_path, content), "#message[0]") is None


@pytest.mark.parametrize(
    "content",
    [
        "A {{ item.text }} b{% if item.text %}c {{ vars }}{% else %}e{% endif %} f",
        "{% set a = item.text %}{% set b %}[{{ a }}]{% endset %}{{ b }}{% for x in [1, 2] %}{{ x }}"
        "{% endfor %}",
        "{% from 'macros.md' import f %}{{ f(item.text) }}{% macro w() %}({{ caller() }}){% endmacro %}"
        "{% call w() %}{{ item.text }}{% endcall %}",
        "a  {%- raw %}{{ item }}{% endraw -%}  b {{- item.text -}} c\n{%- if true %} d\n{% endif %}\n",
        "{% include 'both.md' %}{% filter upper %}x {{ item.text }}{% endfilter %}{% with y = 1 %}{{ y }}"
        "{% endwith %}",
    ],
)
def test_joined_they_render_as_before(tmp_path: Path, content: str) -> None:
    found = prompts(tmp_path, content)
    cut = segments(found, "#message[0]")
    assert cut is not None
    sources = {name: parsed.template.source for name, parsed in found.templates.items()}
    sources["#joined"] = "".join(segment.source for segment in cut)
    renderer = MessageRenderer(sources, {}, ())
    before = renderer.render("#message[0]", {"text": "t"}, "s", "k")
    assert renderer.render("#joined", {"text": "t"}, "s", "k") == before


def test_another_source_for_one_message(tmp_path: Path) -> None:
    write(tmp_path, INCLUDED)
    declared = prompt_class(tmp_path, ("system", "One."), Message("user", prompt="both.md"))
    found = gather(project(tmp_path, declared), declared)
    changed = with_source(found, 1, "{% include 'const.md' %} {{ item.x }}")
    assert trace(changed, 1, {}, ()).head == "Be brief. "
    assert trace(changed, 0, {}, ()).head == "One."
    assert trace(found, 1, {}, ()).head == "Be brief. Look: "
