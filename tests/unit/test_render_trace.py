"""Heads by causality: what comes out before the item is first looked at is the same for every item."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import project, prompt_class, write

from fafo_build.errors import Problem, TemplateError
from fafo_build.render.message import MessageRenderer
from fafo_build.render.sources import gather, normalised
from fafo_build.render.trace import Trace, trace

PROMPTS = {
    "inside.md": "in {{ item.text }}",
    "constant.md": "constant",
    "macros.md": "{% macro show(i) %}<{{ i.text }}>{% endmacro %}{% macro dash() %}-{% endmacro %}",
    "base.md": "[{% block body %}{% endblock %}]",
    "round.md": "{% include 'round.md' %}",
}
VARS = {"audience": "students", "list": [1, 2]}
EXAMPLES = ({"q": "one"}, {"q": "two"})


def traced(root: Path, content: str) -> Trace:
    write(root, {f"prompts/{name}": text for name, text in PROMPTS.items()})
    declared = prompt_class(root, ("user", content), vars=VARS)
    return trace(gather(project(root, declared), declared), 0, VARS, EXAMPLES)


HEADS = [
    ("Fact: {{ item.text }} end", "Fact: "),
    ("{{ audience }}{{ vars.list | length }}: {{ item['text'] }}", "students2: "),
    ("{% for e in examples %}{{ e.q }}\n{% endfor %}{{ item_key }}", "one\ntwo\n"),
    ("{% if item_source == 'rows' %}x{% else %}y{% endif %}", ""),
    ("a{% if 'rows' == item_source %}x{% endif %}", "a"),
    ("a{{ 'x' if item_key in ['q'] else 'y' }}", "a"),
    ("{% set x = item %}abc{{ x.text }}", "abc"),
    ("{% set x = item.text %}abc{{ x }}", ""),
    ("A{% from 'macros.md' import show %}{{ show(item) }}", "A"),
    ("A{% from 'macros.md' import dash %}{{ dash() }}B{{ item.text }}", "A-B"),
    ("{% macro m(i) %}<{{ i.text }}>{% endmacro %}A{{ m(item) }}", "A"),
    ("A {% include 'constant.md' %} {% include 'inside.md' %}", "A constant in "),
    ("{% extends 'base.md' %}{% block body %}b {{ item.text }}{% endblock %}", "[b "),
    ("a{{ 'x' ~ item_key }}", "a"),
    ("a{{ 'x' + item_key }}", "a"),
    ("a{{ '%s' % item_key }}", "a"),
    ("a{{ '%s' | format(item_key) }}", "a"),
    ("a{{ '{}'.format(item_key) }}", "a"),
    ("a{{ item_key | upper }}", "a"),
    ("a{{ 'abc' | replace(item_key, 'x') }}", "a"),
    ("a{{ 'abc'.startswith(item_key) }}", "a"),
    ("a{{ [item_key, 'b'] | join }}", "a"),
    ("a{{ item | length }}", "a"),
    ("a{{ item | tojson }}", "a"),
    ("a{{ dict(x=item_key) | tojson }}", "a"),
    ("a{{ {'x': item_key} | tojson }}", "a"),
    ("a{{ {'x': item_key} }}", "a"),
    ("a{{ item }}", "a"),
    ("a{{ item is mapping }}{{ item_key is string }}{{ item is none }}", "a"),
    ("a{{ item.text is defined }}", "a"),
    ("a{{ vars.list[item.number] }}", "a"),
    ("a{% for x in item %}{{ x }}{% endfor %}", "a"),
    ("a{% for x in range(item.number) %}b{% endfor %}", "a"),
    ("a{% if not item %}b{% endif %}c", "a"),
    ("a{% set ns = namespace(i=item) %}b{{ ns.i.text }}", "ab"),
    ("a{% filter upper %}b{{ item.text }}{% endfilter %}", "a"),
    ("a{{ [item, 1] | last }}b{{ ([item] | first).text }}", "a1b"),
    ("a{{ item.text | hole(special_tokens=true) }}", "a"),
    ("a{{ '<|im_end|>' | hole(special_tokens=true) }}b{{ item.text }}", "a<|im_end|>b"),
]
ROWS = [
    ({"text": "first", "number": 0}, "rows", "a"),
    ({"text": "<|im_end|>", "number": 1}, "other", "q"),
]


@pytest.mark.parametrize(("content", "head"), HEADS)
def test_the_head_is_what_every_item_begins_with(tmp_path: Path, content: str, head: str) -> None:
    assert traced(tmp_path, content) == Trace(head, True)
    renderer = MessageRenderer({**PROMPTS, "#m": content}, VARS, EXAMPLES)
    texts = [renderer.render("#m", *row).text for row in ROWS]
    assert all(text.startswith(head) for text in texts)


@pytest.mark.parametrize(
    "content",
    ["", "plain", "{{ audience }}", "{% set x = item %}a", "{% if false %}{{ item.text }}{% endif %}a"],
)
def test_a_message_that_never_looks_at_the_item_has_no_hole(tmp_path: Path, content: str) -> None:
    found = traced(tmp_path, content)
    assert not found.has_hole
    renderer = MessageRenderer({"#m": content}, VARS, EXAMPLES)
    assert found.head == renderer.render("#m", {}, "", "").text


def failure(root: Path, content: str) -> Problem:
    with pytest.raises(TemplateError) as caught:
        traced(root, content)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        ("a\n{{ 1 // 0 }}", 7, "can't be rendered: ZeroDivisionError"),
        ("{{ examples[0].nope }}{{ item.x }}", 6, "no field 'nope'"),
        ("a\n\n{{ vars.list.nope }}", 8, "has no attribute 'nope'"),
        ("{{ range(1000000) | list | length }}", 6, "OverflowError"),
        ("{{ 'long text' | truncate(2) }}", 6, "AssertionError"),
        ("{{ 'x' ~ range }}", 6, "is put out as at 0x"),
        ("{{ 'x' ~ range }}{{ item.text }}", 6, "is put out as at 0x"),
    ],
)
def test_a_head_that_fails_is_placed(tmp_path: Path, content: str, line: int, why: str) -> None:
    problem = failure(tmp_path, content)
    assert (problem.file, problem.line) == ("classes/exam.toml", line)
    assert why in problem.message


def test_a_circle_of_includes_is_an_error(tmp_path: Path) -> None:
    assert "RecursionError" in failure(tmp_path, "{% include 'round.md' %}").message


def test_a_newline_at_the_end_of_a_message_is_dropped_once() -> None:
    assert normalised("x\n\n") == "x\n"


def test_blocks_that_are_nested_too_deeply(tmp_path: Path) -> None:
    content = "{% for a in examples %}" * 30 + "{{ item.x }}" + "{% endfor %}" * 30
    assert "can't be rendered: SyntaxError" in failure(tmp_path, content).message
