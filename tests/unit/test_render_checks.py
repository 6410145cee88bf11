"""Mistakes that are found before a row is seen, each with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bake_kit import project, prompt_class, write

from fafo_build.errors import Problem, TemplateError
from fafo_build.project.declaration import Message
from fafo_build.render.checks import check, check_class
from fafo_build.render.sources import Prompts, gather
from fafo_build.render.used import used_vars, uses_examples


def prompts_of(root: Path, content: str, prompts: dict[str, str], vars: dict[str, Any]) -> Prompts:
    write(root, {f"prompts/{name}": text for name, text in prompts.items()})
    declared = prompt_class(root, ("user", content), vars=vars)
    return gather(project(root, declared), declared)


def problems(root: Path, content: str, **vars: Any) -> tuple[Problem, ...]:
    with pytest.raises(TemplateError) as caught:
        check(prompts_of(root, content, {}, vars), vars)
    return caught.value.problems


def test_an_undefined_name_has_file_line_and_column(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "For {{ item.x }}\nand {{ audiense }}.", audience="x")
    assert problem.render() == (
        "classes/exam.toml:7:8: 'audiense' is undefined\n"
        "    and {{ audiense }}.'''\n"
        "           ^\n"
        "  cure: did you mean audience? (a column of the row is item.audiense)"
    )


def test_a_mistake_in_a_prompt_names_the_class_that_lacks_something(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/house.md": "{{ shop }}"})
    declared = prompt_class(tmp_path, ("user", "{% include 'house.md' %} {{ nope }}"))
    made = project(tmp_path, declared)
    with pytest.raises(TemplateError) as caught:
        check_class(gather(made, declared), declared)
    assert [(problem.where, problem.field) for problem in caught.value.problems] == [
        ("classes/exam.toml:6:29", None),
        ("prompts/house.md:1:4", "class.exam"),
    ]


def test_an_undefined_name_in_an_include_is_placed_there(tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, "{% include 'a.md' %}", {"a.md": "\n\n{{ nobody }}"}, {})
    with pytest.raises(TemplateError) as caught:
        check(prompts, {})
    assert caught.value.problems[0].where == "prompts/a.md:3:4"


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "{{ one }}{{ two }}{{ item.x | upperr }}{{ vars.three }}")) == 4


@pytest.mark.parametrize("name", ["now", "lipsum"])
def test_volatile_names_are_explained(tmp_path: Path, name: str) -> None:
    (problem,) = problems(tmp_path, "{{ " + name + "() }}")
    assert "doesn't exist here: a prompt must be the same" in problem.message


def test_the_random_filter_is_explained(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "{{ examples | random }}")
    assert problem.message == "there is no filter 'random'"
    assert problem.cure == "a prompt must be the same at every build"


@pytest.mark.parametrize(
    ("content", "message", "cure"),
    [
        ("{{ vars.audiense }}", "'vars.audiense' is undefined", "did you mean audience?"),
        ("{{ vars['audiense'] }}", "'vars.audiense' is undefined", "did you mean audience?"),
        ("{{ item.x | uper }}", "there is no filter 'uper'", "did you mean upper?"),
        ("{{ item.x is defind }}", "there is no test 'defind'", "did you mean defined?"),
    ],
)
def test_misspelt_names_get_a_hint(tmp_path: Path, content: str, message: str, cure: str) -> None:
    (problem,) = problems(tmp_path, content, audience="x")
    assert (problem.message, problem.cure) == (message, cure)


@pytest.mark.parametrize(
    "content",
    [
        "{{ item.x | hole(special_tokens=true) | upper }}",
        "{{ 'a' ~ (item.x | hole) }}",
        "{% set y = item.x | hole %}{{ y }}",
        "{% filter upper %}{{ item.x | hole(special_tokens=true) }}{% endfilter %}",
        "{% set y %}{{ item.x | hole(special_tokens=true) }}{% endset %}{{ y }}",
    ],
)
def test_hole_must_be_last(tmp_path: Path, content: str) -> None:
    (problem,) = problems(tmp_path, content)
    assert "must be the last filter" in problem.message


HOLED = {
    "holed.md": "{{ item.x | hole(special_tokens=true) }}",
    "deep.md": "{% if item.x %}{% include 'holed.md' %}{% endif %}",
    "frame.md": "[{% block body %}{{ item.x | hole(special_tokens=true) }}{% endblock %}]",
    "turns.md": "{% macro turn(x) %}{{ '<|im_start|>' | hole(special_tokens=true) }}{{ x }}{% endmacro %}"
    "{% macro two(x) %}{{ turn(x) }}{{ turn(x) }}{% endmacro %}{% macro dry() %}-{% endmacro %}",
    "wrap.md": "{% macro wrap() %}({{ caller() }}){% endmacro %}",
    "plain.md": "x",
}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{% from 'turns.md' import turn %}{{ turn(item.x) | trim }}", "turn(...)"),
        ("{% from 'turns.md' import turn as t %}{{ 'a' ~ t(item.x) }}", "t(...)"),
        ("{% from 'turns.md' import turn as t %}{% set f = t %}{{ f(item.x) }}", "t(...)"),
        ("{% import 'turns.md' as lib %}{% if lib.two(item.x) == 'a' %}{% endif %}", "lib.two(...)"),
        ("{% import 'turns.md' as lib %}{{ [item.x] | map(lib.two) | join }}", "lib.two(...)"),
        (
            "{% import 'turns.md' as lib %}{% set y %}{{ lib.turn(item.x) }}{% endset %}{{ y }}",
            "lib.turn(...)",
        ),
        ("{% filter upper %}{% include 'holed.md' %}{% endfilter %}", "this prompt puts out"),
        ("{% set y %}{% include 'deep.md' %}{% endset %}{{ y | trim }}", "this prompt puts out"),
        ("{% set y %}{% include 'frame.md' %}{% endset %}{{ y | trim }}", "this prompt puts out"),
        ("{% extends 'frame.md' %}{% block body %}{{ super() | trim }}{% endblock %}", "super(...)"),
        ("{% block b %}{{ item.x | hole }}{% endblock %}{{ self.b() | trim }}", "self.b(...)"),
        (
            "{% macro cut() %}{{ caller() | trim }}{% endmacro %}"
            "{% call cut() %}{{ item.x | hole(special_tokens=true) }}{% endcall %}",
            "caller(...)",
        ),
        ("{% for a in item.x recursive %}{{ a.y | hole }}{{ loop(a.z) | trim }}{% endfor %}", "loop(...)"),
    ],
)
def test_what_puts_out_a_hole_must_stand_alone(tmp_path: Path, content: str, word: str) -> None:
    with pytest.raises(TemplateError) as caught:
        check(prompts_of(tmp_path, content, HOLED, {}), {})
    (problem,) = caught.value.problems
    assert problem.message.startswith(word)
    assert problem.line == 6


@pytest.mark.parametrize(
    "content",
    [
        "{% macro m(x) %}<{{ x | hole(special_tokens=true) }}>{% endmacro %}{{ m(item.x) }}{{- m('a') -}}",
        "{% from 'turns.md' import turn as t, two, dry %}{{ t(item.x) }}{{ two('a') }}{{ dry() | trim }}",
        "{% import 'turns.md' as lib %}{{ lib.two(item.x) }}{{ lib.dry() ~ 'a' }}",
        "{% from 'turns.md' import turn %}{% for turn in item.x %}{{ turn | trim }}{% endfor %}",
        "{% include 'deep.md' %}{% if item.x %}{% include 'holed.md' %}{% endif %}",
        "{% extends 'frame.md' %}{% block body %}{{ super() }}{% endblock %}",
        "{% block b %}{{ item.x | hole }}{% endblock %}{{ self.b() }}",
        "{% from 'wrap.md' import wrap %}{% call wrap() %}{{ item.x | hole }}{% endcall %}",
        "{% from 'turns.md' import turn %}{% call turn('a') %}{% endcall %}",
        "{% for a in item.x recursive %}{{ loop.index }}{{ a.y | hole }}{{ loop(a.z) }}{% endfor %}",
        "{% set y %}{% include 'plain.md' %}{% endset %}{{ y | trim }}",
    ],
)
def test_what_puts_out_a_hole_may_be_called_and_included(tmp_path: Path, content: str) -> None:
    check(prompts_of(tmp_path, content, HOLED, {}), {})


@pytest.mark.parametrize(
    "options", ["(true)", "(special_tokens=item.y)", "(special=true)", "(special_tokens=1)"]
)
def test_hole_has_one_option(tmp_path: Path, options: str) -> None:
    (problem,) = problems(tmp_path, "{{ item.x | hole" + options + " }}")
    assert problem.message.startswith("hole takes special_tokens=true")


@pytest.mark.parametrize(
    "content",
    [
        "{{ item.x }} {{ item_source }} {{ item_key }} {{ vars.audience }} {{ audience }} {{ examples }}",
        "{% set a = 1 %}{{ a }}{% for b in examples %}{{ loop.index }}{{ b }}{% endfor %}",
        "{% macro m(c) %}{{ c }}{{ varargs }}{% endmacro %}{{ m(item.x) }}",
        "{% set d = namespace(e=1) %}{{ d.e }}{{ range(3) | list }}{{ dict(a=1) }}",
        "{% set shared = 1 %}{% include 'uses_shared.md' %}",
        "{% import 'macros.md' as lib with context %}{{ lib.m() }}",
        "{% extends 'base.md' %}{% block body %}{{ super() }}{{ item.x }}{% endblock %}",
        "{{ vars.get('x', 1) }}{{ vars.items() | list }}",
        "{{ item.x | hole(special_tokens=true) }}{{ item | hole(special_tokens=false) }}{{ item.x | hole }}",
    ],
)
def test_what_is_right_passes(tmp_path: Path, content: str) -> None:
    prompts = {
        "uses_shared.md": "{{ shared }}",
        "macros.md": "{% macro m() %}{{ audience }}{% endmacro %}",
        "base.md": "{% block body %}{{ audience }}{% endblock %}",
    }
    vars = {"audience": "x"}
    check(prompts_of(tmp_path, content, prompts, vars), vars)


@pytest.mark.parametrize(
    "content",
    [
        "{% if tone is defined %}{{ tone }}{% endif %}",
        "{% if tone is not defined %}{% else %}{{ tone }}{% endif %}",
        "{% if tone is defined and tone == 'dry' %}{% elif tone is defined %}{{ tone }}{% endif %}",
        "{{ tone | default('dry') }}{{ tone | d('dry') }}",
        "{{ tone if tone is defined else 'dry' }}",
        "{{ tone is defined and tone }}",
        "{{ tone is undefined or tone }}",
        "{% if vars.tone is defined %}{{ vars.tone }}{{ tone }}{% endif %}",
        "{{ vars['tone'] | default('dry') }}",
        "{{ style.tone | default('dry') }}{{ vars.style.tone is defined }}",
        "{% if style.tone is defined %}{{ style.tone }}{{ vars.style['tone'] }}{% endif %}",
        "{% if tone is defined %}{{ tone.word }}{% endif %}",
    ],
)
def test_what_may_be_absent_is_asked_for(tmp_path: Path, content: str) -> None:
    vars = {"style": {"words": 1}}
    check(prompts_of(tmp_path, "{{ item.x }}" + content, {}, vars), vars)


@pytest.mark.parametrize(
    ("content", "message", "cure"),
    [
        ("{% if tone is defined %}x{% endif %}{{ tone }}", "'tone' is undefined", "a prompt sees"),
        ("{% if tone %}{{ tone }}{% endif %}", "'tone' is undefined", "a prompt sees"),
        ("{{ style.tone }}", "'vars.style.tone' is undefined", "[vars.style] has: words, deep"),
        ("{{ style.word }}", "'vars.style.word' is undefined", "did you mean words?"),
        ("{{ vars.style['word'] }}", "'vars.style.word' is undefined", "did you mean words?"),
        ("{{ style.deep.lengt | upper }}", "'vars.style.deep.lengt' is undefined", "did you mean length?"),
        ("{{ style.deep.lengt.x }}", "'vars.style.deep.lengt' is undefined", "did you mean length?"),
        (
            "{% if style.tone is defined %}{{ style.word }}{% endif %}",
            "'vars.style.word' is undefined",
            "words?",
        ),
        ("{% if tone.x is defined %}{% endif %}", "'tone' is undefined", "a prompt sees"),
    ],
)
def test_what_isnt_there_is_found_after_a_hole_too(
    tmp_path: Path, content: str, message: str, cure: str
) -> None:
    (problem,) = problems(tmp_path, "{{ item.x }}" + content, style={"words": 1, "deep": {"length": 2}})
    assert problem.message == message
    assert cure in (problem.cure or "")


def test_a_name_that_is_set_in_the_prompt_is_no_class_variable(tmp_path: Path) -> None:
    content = "{% for style in item.x %}{{ style.tone }}{% endfor %}{% set vars = item %}{{ vars.nobody }}"
    vars = {"style": {"words": 1}}
    check(prompts_of(tmp_path, content, {}, vars), vars)


@pytest.mark.parametrize(
    ("content", "cure"),
    [
        ("{% from 'macros.md' import shwo %}", "did you mean show?"),
        ("{% from 'macros.md' import shwo as s %}", "did you mean show?"),
        ("{% import 'macros.md' as lib %}{{ lib.shwo() }}", "did you mean show?"),
    ],
)
def test_a_macro_that_isnt_in_the_prompt(tmp_path: Path, content: str, cure: str) -> None:
    prompts = {"macros.md": "{% macro show(x) %}{% endmacro %}{% set tone = 1 %}{% set _own = 2 %}"}
    with pytest.raises(TemplateError) as caught:
        check(prompts_of(tmp_path, "{{ item.x }}" + content, prompts, {}), {})
    (problem,) = caught.value.problems
    assert (problem.message, problem.cure) == ("there is no 'shwo' in prompts/macros.md", cure)
    assert problem.line == 6
    check(prompts_of(tmp_path, "{% from 'macros.md' import show, tone %}{{ item.x }}", prompts, {}), {})


def test_an_import_that_asks_for_a_variable_still_doesnt_see_it(tmp_path: Path) -> None:
    prompts = {"macros.md": "{% macro m() %}{{ tone | default('dry') }}{% endmacro %}"}
    content = "{% import 'macros.md' as lib %}{{ lib.m() }}{{ item.x }}"
    check(prompts_of(tmp_path, content, prompts, {}), {})
    with pytest.raises(TemplateError, match="isn't visible in an imported prompt"):
        check(prompts_of(tmp_path, content, prompts, {"tone": "wry"}), {"tone": "wry"})


def test_an_import_without_context_sees_nothing(tmp_path: Path) -> None:
    content = "{% import 'macros.md' as lib %}{{ lib.m() }}"
    prompts = prompts_of(tmp_path, content, {"macros.md": "{% macro m() %}{{ audience }}{% endmacro %}"}, {})
    with pytest.raises(TemplateError) as caught:
        check(prompts, {"audience": "x"})
    (problem,) = caught.value.problems
    assert problem.message == "'audience' isn't visible in an imported prompt"
    assert problem.cure == "import it `with context`"


def test_used_variables(tmp_path: Path) -> None:
    vars = {"z": 1, "a": 2, "unused": 3}
    prompts = prompts_of(tmp_path, "{{ vars.z }}{% include 'i.md' %}", {"i.md": "{{ a }}"}, vars)
    assert used_vars(prompts, prompts.reach("#message[0]"), vars) == {"a": 2, "z": 1}
    assert not uses_examples(prompts, prompts.reach("#message[0]"))
    whole = prompts_of(tmp_path, "{% for k in vars %}{{ k }}{% endfor %}{{ examples }}", {}, vars)
    assert list(used_vars(whole, whole.reach("#message[0]"), vars)) == ["z", "a", "unused"]
    assert uses_examples(whole, whole.reach("#message[0]"))


def test_message_from_a_prompt_file(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/m.md": "{{ nope }}"})
    declared = prompt_class(tmp_path, Message("user", prompt="m.md"))
    with pytest.raises(TemplateError, match="'nope' is undefined"):
        check(gather(project(tmp_path, declared), declared), {})


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("the audiense: {{ audiense }}", 18),
        ("{% if audiense %}{{ audiense }}{% endif %}", 7),
        ("{{ my_audiense or audiense }}", 19),
    ],
)
def test_the_column_is_that_of_the_code(tmp_path: Path, line: str, column: int) -> None:
    found = [problem for problem in problems(tmp_path, line) if "'audiense'" in problem.message]
    assert [problem.column for problem in found] == [column]


def test_a_bare_column_is_told_from_a_misspelt_name(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "{{ text }}", audience="x")
    assert problem.cure == (
        "a prompt sees: audience, examples, item, item_key, item_source, vars "
        "(a column of the row is item.text)"
    )
