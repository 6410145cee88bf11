"""A prompt that needs what no row has is refused before the first item, at the place that needs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project as project_of
from bake_kit import prompt_class, smollm2, write

from fafo_build.bake.compile import compile_class
from fafo_build.errors import Problem, TemplateError
from fafo_build.project.declaration import Message, Source
from fafo_run.run.fit import SAMPLE, check_fit

PLACES = Source("rows", "files", ("id",), path=("rows.jsonl",))
ROWS = [{"id": number, "text": f"t{number}", "kind": "ab"[number % 2]} for number in range(12)]


def rows(root: Path, rows: list[dict[str, object]], name: str = "rows") -> None:
    write(root, {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})


def checked(
    root: Path, content: str | Message, *sources: Source, stale: str | None = None, **options: object
) -> tuple[Problem, ...]:
    """Return what is wrong with a class of one message over these sources, `rows.jsonl` unless told."""
    message = content if isinstance(content, Message) else ("user", content)
    declared = prompt_class(root, message, **options)  # type: ignore[arg-type]
    used = sources or (PLACES,)
    declared = evolve(declared, sources=tuple(source.name for source in used))
    project = evolve(project_of(root, declared), sources={source.name: source for source in used})
    artifact = compile_class(project, declared, smollm2())
    if stale is not None:
        project = evolve(project, classes={"exam": prompt_class(root, ("user", stale))})
    try:
        check_fit(project, [(project.classes["exam"], artifact, used)])
    except TemplateError as error:
        return error.problems
    return ()


def test_a_misspelt_column_is_named_with_its_place_and_those_that_are_there(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    (problem,) = checked(tmp_path, "Fact:\n{{ item.id }} {{ item.txet }}")
    assert problem.message == 'no field "txet" in the first 12 rows of rows'
    assert (problem.where, problem.field) == ("classes/exam.toml:7:23", "class.exam")
    assert problem.source_line == "{{ item.id }} {{ item.txet }}'''"
    assert problem.cure == (
        'did you mean "text"? there are "id", "text", "kind"; '
        "of what only some rows have ask first: `is defined`, or `| default('')`"
    )


@pytest.mark.parametrize(
    "content",
    [
        "{{ item.text }}",
        "{% if item.note is defined %}{{ item.note }}{% endif %}",
        "{{ item.note | default('none') }}",
        "{{ item['note'] | default(item.text) }}",
        "{% if item.kind == 'b' %}{{ item.note }}{% endif %}",
        "{% for each in item.tags | default([]) %}{{ each.note }}{% endfor %}",
        "{% macro say(it) %}{% if it is defined %}{{ it }}{% endif %}{% endmacro %}{{ say(item.note) }}",
        "{% set note = item.note %}{{ item.text }}",
        "{{ 'x' if item_source == 'rows' else item.note }}",
        "{{ item.text + 1 }}",
    ],
)
def test_what_some_row_can_do_without_is_left_alone(tmp_path: Path, content: str) -> None:
    rows(tmp_path, ROWS)
    assert checked(tmp_path, content) == ()


def test_one_row_that_has_the_column_is_enough(tmp_path: Path) -> None:
    rows(tmp_path, [*ROWS, {"id": 99, "text": "x", "note": "y"}])
    assert checked(tmp_path, "{{ item.note }}") == ()


def test_a_null_says_nothing_of_the_rows_that_follow(tmp_path: Path) -> None:
    rows(tmp_path, [{"id": number, "note": None} for number in range(5)])
    assert checked(tmp_path, "{{ item.note }}") == ()


def test_all_mistakes_of_a_class_are_said_at_once(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    found = checked(tmp_path, "{{ item.txet }}\n{{ item.text }} {% if item.knid %}{{ item.idd }}{% endif %}")
    assert [(problem.line, problem.message.split()[2]) for problem in found] == [(6, '"txet"'), (7, '"knid"')]


def test_what_is_missing_is_never_offered_as_there(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    first, second = checked(tmp_path, "{{ item.note }} {{ item.noted }}")
    for problem in (first, second):
        assert (problem.cure or "").startswith('there are "id", "text", "kind"; ')


def test_what_a_table_of_the_class_lacks_is_left_alone(tmp_path: Path) -> None:
    """The rows have what the prompt needs of them; which keys the table lacks depends on each."""
    rows(tmp_path, ROWS)
    assert checked(tmp_path, "{{ names[item.kind] }}", vars={"names": {"c": "x"}}) == ()


def test_rows_that_lack_different_things_are_counted_apart(tmp_path: Path) -> None:
    rows(tmp_path, [{"id": number, "ab"[number % 2]: "x"} for number in range(9)])
    found = checked(tmp_path, "{{ item.a }}\n{{ item.b }}")
    assert [problem.message for problem in found] == [
        'no field "a" in 4 of the first 9 rows of rows',
        'no field "b" in 5 of the first 9 rows of rows',
    ]


def test_a_field_inside_a_column_is_a_field_too(tmp_path: Path) -> None:
    rows(tmp_path, [{"id": number, "meta": {"author": "x"}} for number in range(3)])
    (problem,) = checked(tmp_path, "{{ item.meta.autor }}")
    assert problem.message == 'no field "autor" in the first 3 rows of rows'
    assert 'did you mean "author"? there are "author"; ' in (problem.cure or "")


def test_a_macro_and_an_included_prompt_are_looked_into(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    parts = "{# What\nis asked. #}\n{% macro fact(row) %}\n{{ row.txet }}{% endmacro %}"
    write(tmp_path, {"prompts/parts.md": parts, "prompts/more.md": "\n{{ item.knid }}"})
    write(tmp_path, {"prompts/all.md": "{% from 'parts.md' import fact %}{{ fact(item) }}"})
    (problem,) = checked(tmp_path, Message("user", prompt="all.md"))
    assert (problem.where, problem.field) == ("prompts/parts.md:4:8", "class.exam")
    (problem,) = checked(tmp_path, "{% include 'more.md' %}")
    assert problem.where == "prompts/more.md:2:9"


def test_only_so_many_rows_are_looked_at(tmp_path: Path) -> None:
    rows(tmp_path, [{"id": number, "text": "x"} for number in range(SAMPLE + 20)])
    (problem,) = checked(tmp_path, "{{ item.note }}")
    assert problem.message == f'no field "note" in the first {SAMPLE} rows of rows'


def test_broken_rows_and_no_rows_say_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"rows.jsonl": '{"id": 1\n{"text": "no key"}\nnull\n'})
    assert checked(tmp_path, "{{ item.txet }}", evolve(PLACES, key=("content",), limit=1)) == ()


def test_each_source_is_held_against_the_prompts_by_itself(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    rows(tmp_path, [{"id": 1, "name": "x"}], "others")
    others = Source("others", "files", ("id",), path=("others.jsonl",))
    (problem,) = checked(tmp_path, "{{ item.text }}", PLACES, others)
    assert problem.message == 'no field "text" in the first row of others'
    asked = "{% if item_source == 'rows' %}{{ item.text }}{% else %}{{ item.name }}{% endif %}"
    assert checked(tmp_path, asked, PLACES, others) == ()


def test_prompts_that_have_changed_since_the_build_name_the_class_alone(tmp_path: Path) -> None:
    rows(tmp_path, ROWS)
    (problem,) = checked(tmp_path, "{{ item.txet }}", stale="{{ item.text }}")
    assert (problem.file, problem.line, problem.field) == ("classes/exam.toml", None, "class.exam")
    assert problem.message == 'no field "txet" in the first 12 rows of rows'
    (problem,) = checked(tmp_path, "{{ item.txet }}", stale="{% if %}")
    assert (problem.file, problem.line) == ("classes/exam.toml", None)


def test_a_source_that_cant_be_read_is_told(tmp_path: Path) -> None:
    declared = prompt_class(tmp_path, ("user", "{{ item.text }}"))
    project = project_of(tmp_path, declared)
    classes = [(declared, compile_class(project, declared, smollm2()), (PLACES,))] * 2
    check_fit(project, classes)
    told: list[str] = []
    check_fit(project, classes, unread=lambda source, _: told.append(source.name))
    assert told == ["rows"], "once for each source"
