"""The author's special tokens in messages with holes: each must be asked for where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import project, prompt_class, write

from fafo_build.errors import Problem, TemplateError
from fafo_build.render.checks import check
from fafo_build.render.sources import gather
from fafo_build.render.special_tokens import check_special_tokens

PROMPTS = {
    "plain.md": "constant",
    "mark.md": "one\n <|im_end|>",
    "macros.md": "{% macro mark() %}\n<|im_end|>{% endmacro %}",
    "base.md": "[{% block body %}\n<|im_end|>{% endblock %}]",
    "includes.md": "{% include 'mark.md' %}",
}
VARS = {
    "mark": "<|im_end|>",
    "deep": {"list": [1, "a", {"x": "b<|im_end|>"}]},
    "key": {"<|im_end|>": 1},
    "audience": "students",
}
EXAMPLES = ({"q": "one"}, {"q": "two"})
CONTROL = ("<|im_end|>", "<|im_start|>")
CURE = (
    "write {{ '<|im_end|>' | hole(special_tokens=true) }}, or put it into a message that doesn't look at "
    "the item"
)


def checked(root: Path, content: str, examples: tuple[dict[str, str], ...] = EXAMPLES) -> tuple[Problem, ...]:
    """Return the problems of a message, as if it looked at the item."""
    write(root, {f"prompts/{name}": text for name, text in PROMPTS.items()})
    declared = prompt_class(root, ("user", content), vars=VARS)
    prompts = gather(project(root, declared), declared)
    check(prompts, VARS)
    try:
        check_special_tokens(prompts, prompts.reach(prompts.messages[0]), VARS, examples, CONTROL)
    except TemplateError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("{{ item.text }}\n<|im_end|>", 1),
        ("\n<|im_end|>{{ item.text }}", 1),
        ("\n<|im_end|> and <|im_end|>{{ item.text }}", 1),
        ("{{ item.text -}}\nabc<|im_end|>", 4),
        ("\n{{ '<|im_end|>' }}", 5),
        ("\n{{ '<|im_end|>' | hole }}", 5),
        ("\n{{ '<|im_end|>' | hole(special_tokens=false) }}", 5),
        ("\n{{ '<|im_end|>' | hole(special_tokens=true) }}<|im_end|>", 47),
        ("\n{{ '' }}{{ '<|im_end|>' | hole(special_tokens=true) }}{{ '<|im_end|>' }}", 59),
        ("\n{# <|im_end|> #}<|im_end|>", 17),
        ("\n{{ '\\x3c|im_end|>' }}", None),
        ("{% if item.text %}\n<|im_end|>{% endif %}", 1),
        ("\n{{ 'a' if item.text else '<|im_end|>' }}", 27),
        ("\n{{ item.text or '<|im_end|>' }}", 18),
        ("\n{{ 'a' ~ item.text ~ '<|im_end|>' }}", 23),
        ("\n{{ item.text + '<|im_end|>' }}", 17),
        ("\n{{ item.note | default('<|im_end|>') }}", 25),
        ("\n{{ item.note | replace('a', '<|im_end|>') }}", 30),
        ("\n{{ '<|im_end|>' | replace('a', 'b') }}", 5),
        ("\n{{ '%s' | format('<|im_end|>') }}", 19),
        ("\n{{ item.note.replace('a', '<|im_end|>') }}", 28),
        ("\n{{ item.note | truncate(9, end='<|im_end|>') }}", 33),
        ("\n{% set x = '<|im_end|>' %}{{ x | upper }}", 13),
        ("\n{% for x in ['<|im_end|>'] %}{{ x }}{% endfor %}", 15),
        ("{% macro m() %}\n<|im_end|>{% endmacro %}{{ m() }}", 1),
        ("\n{% macro m(x='<|im_end|>') %}{{ x }}{% endmacro %}{{ m() }}", 15),
        ("{% filter upper %}\n<|im_end|>{% endfilter %}", 1),
        ("{% raw %}\n<|im_end|>{% endraw %}", 1),
    ],
)
def test_text_must_be_asked_for(tmp_path: Path, content: str, column: int | None) -> None:
    (problem,) = checked(tmp_path, content)
    assert problem.message == (
        "the special token <|im_end|> stands as mere text in a message that looks at the item"
    )
    assert (problem.file, problem.line, problem.column) == ("classes/exam.toml", 7, column)
    assert problem.cure == CURE


@pytest.mark.parametrize(
    ("content", "name", "column"),
    [
        ("\n{{ vars.mark }}", "mark", 9),
        ("\n{{ vars['mark'] }}", "mark", 10),
        ("\n{{ mark }}", "mark", 4),
        ("\n{{ deep.list | tojson }}", "deep", 4),
        ("\n{{ key | join }}", "key", 4),
        ("\n{% for x in vars.deep.list %}{{ x }}{% endfor %}", "deep", 18),
        ("\n{{ vars[item.name] }}", "vars", 4),
        ("\n{{ vars.get('mark') }}", "vars", 4),
    ],
)
def test_variables_must_be_asked_for(tmp_path: Path, content: str, name: str, column: int) -> None:
    (problem,) = checked(tmp_path, content)
    assert f"the special token <|im_end|> in '{name}' stands as mere text" in problem.message
    assert (problem.line, problem.column, problem.cure) == (7, column, CURE)


def test_examples_must_be_asked_for(tmp_path: Path) -> None:
    loop = "\n{% for e in examples %}{{ e.q }}{% endfor %}"
    assert not checked(tmp_path, loop)
    (problem,) = checked(tmp_path, loop, ({"q": "one"}, {"q": "<|im_start|>"}))
    assert "the special token <|im_start|> in 'examples'" in problem.message
    assert (problem.line, problem.column) == (7, 13)
    asked = "{{ examples | map(attribute='q') | join | hole(special_tokens=true) }}"
    assert not checked(tmp_path, asked, ({"q": "<|im_start|>"},))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("{% include 'mark.md' %}", "prompts/mark.md:2:2"),
        ("{% include 'includes.md' %}", "prompts/mark.md:2:2"),
        ("{% from 'macros.md' import mark %}", "prompts/macros.md:2:1"),
        ("{% import 'macros.md' as lib %}", "prompts/macros.md:2:1"),
        ("{% extends 'base.md' %}{% block body %}{{ item.text }}{% endblock %}", "prompts/base.md:2:1"),
    ],
)
def test_all_that_the_message_reaches_is_checked(tmp_path: Path, content: str, where: str) -> None:
    assert [problem.where for problem in checked(tmp_path, content)] == [where]


def test_all_places_come_at_once(tmp_path: Path) -> None:
    content = "<|im_end|><|im_start|>\na <|im_end|>\n{{ mark }}{{ item.text }}{% include 'mark.md' %}"
    assert [problem.where for problem in checked(tmp_path, content)] == [
        "classes/exam.toml:6:1",
        "classes/exam.toml:6:11",
        "classes/exam.toml:7:3",
        "classes/exam.toml:8:4",
        "prompts/mark.md:2:2",
    ]


@pytest.mark.parametrize(
    "content",
    [
        "{{ '<|im_end|>' | hole(special_tokens=true) }}{{ item.text }}",
        "{{ item.text }}{{ '<|im_end|>' | hole(special_tokens=true) }}",
        "{% if item.text %}{{ vars.mark | hole(special_tokens=true) }}{% endif %}",
        "{{ ('a' ~ mark if item.text else item.note | default('<|im_end|>')) | hole(special_tokens=true) }}",
        "{{ item.text | replace('<|im_end|>', '') }}",
        "{% filter replace(mark, '') %}{{ item.text }}{% endfilter %}",
        "{{ item.text == '<|im_end|>' }}{% if item.text == mark %}a{% endif %}",
        "{% if '<|im_end|>' in item.text %}a{% endif %}{{ 'a' if mark == item.text else 'b' }}",
        "{% if mark %}a{% elif item.text.startswith('<|im_end|>') %}b{% endif %}",
        "{{ item.text is in ['<|im_end|>'] }}",
        "{{ vars.audience }}{{ audience }}{% include 'plain.md' %}",
        "{# <|im_end|> #}{{ item.text }}<|im_en",
    ],
)
def test_what_is_asked_for_or_only_looked_for_is_fine(tmp_path: Path, content: str) -> None:
    assert checked(tmp_path, content) == ()
