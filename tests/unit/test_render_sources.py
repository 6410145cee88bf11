"""Prompts that are absent, broken or reach outside: each ends in one clear line, all of a class at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from bake_kit import project, prompt_class, write

from fafo_build.errors import Problem, TemplateError
from fafo_build.project.declaration import Message
from fafo_build.project.locate import located
from fafo_build.render.sources import Prompts, gather, normalised

SYSTEM = Message("system", prompt="main.md")


def gathered(root: Path, *messages: tuple[str, str] | Message, **prompts: str | bytes) -> Prompts:
    write(root, {f"prompts/{name.replace('__', '/')}.md": content for name, content in prompts.items()})
    declared = prompt_class(root, *messages)
    return gather(project(root, declared), declared)


def problems(root: Path, *messages: tuple[str, str] | Message, **prompts: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(TemplateError) as caught:
        gathered(root, *messages, **prompts)
    return caught.value.problems


def test_includes_are_followed_and_hashed(tmp_path: Path) -> None:
    found = gathered(
        tmp_path,
        SYSTEM,
        ("user", "{% from 'sub/c.md' import x with context %}"),
        main="{% include 'b.md' %}",
        b="B",
        sub__c="{% macro x() %}{% endmacro %}",
        unused="never",
    )
    assert found.messages == ("main.md", "#message[1]")
    assert list(found.files) == ["prompts/b.md", "prompts/main.md", "prompts/sub/c.md"]
    assert found.reach("main.md") == ("b.md", "main.md")
    assert found.reach("#message[1]") == ("#message[1]", "sub/c.md")


def test_an_absent_prompt_is_named_where_it_is_declared(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/examiner.md": "x"})
    write(tmp_path, {"fafo.toml": ""})
    (problem,) = located(
        TemplateError(problems(tmp_path, Message("system", prompt="examinr.md"))), tmp_path
    ).problems
    assert problem.render() == (
        'classes/exam.toml:5:10: class.exam.message[1].prompt: there is no prompt "prompts/examinr.md"\n'
        '    prompt = "examinr.md"\n'
        "             ^\n"
        '  cure: did you mean "examiner.md"?'
    )


def test_an_absent_include_is_named_where_it_stands(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main="one\n{% include 'gone.md' %}")
    assert problem.where == "prompts/main.md:2:13"
    assert problem.message == 'there is no prompt "prompts/gone.md"'


def test_a_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    first, second = problems(
        tmp_path, SYSTEM, ("user", "fine\n{{ item.text }\nmore"), main="one\ntwo\n{% if x %}\nthree"
    )
    assert first.file == "prompts/main.md"
    assert (first.line, first.column) == (3, 1)
    assert first.message == "the {% if %} of line 3 is never closed"
    assert second.where == "classes/exam.toml:10:14"
    assert second.source_line == "{{ item.text }"
    assert "unexpected '}'" in second.message


@pytest.mark.parametrize("name", ["../secret.md", "/etc/passwd", "a/../../b.md", "a\\b.md", "./a.md"])
def test_a_prompt_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main="{% include " + repr(name) + " %}")
    assert "isn't a path inside the prompts folder" in problem.message


def test_a_computed_name_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main="\n{% include 'a' ~ item.kind %}")
    assert problem.where == "prompts/main.md:2"
    assert "computed" in problem.message


def test_a_list_of_names_needs_them_all(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main="{% include ['b.md', 'gone.md'] ignore missing %}", b="x")
    assert problem.message == 'there is no prompt "prompts/gone.md"'


def test_a_prompt_that_is_not_utf8(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main=b"one\ntwo \xff")
    assert problem.where == "prompts/main.md:2"
    assert problem.message == "not UTF-8"


def test_a_folder_is_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompts/main.md").mkdir(parents=True)
    (problem,) = problems(tmp_path, SYSTEM)
    assert "can't be read: Is a directory" in problem.message


def test_a_block_that_is_defined_twice(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SYSTEM, main="{% block a %}{% endblock %}\n{% block a %}{% endblock %}")
    assert problem.where == "prompts/main.md:2"
    assert "defined twice" in problem.message


def test_a_circle_of_includes_ends(tmp_path: Path) -> None:
    found = gathered(tmp_path, SYSTEM, main="{% include 'b.md' %}", b="{% include 'main.md' %}")
    assert found.reach("main.md") == ("b.md", "main.md")


@pytest.mark.parametrize("text", ["a\nb\n", "a\r\nb\r\n", "\ufeffa\nb\n", "a\rb\r"])
def test_newlines_and_byte_order_marks_make_no_difference(text: str) -> None:
    assert normalised(text) == "a\nb"


def test_only_one_newline_is_dropped() -> None:
    assert normalised("a\n\n") == "a\n"
    assert normalised("a") == "a"
