"""Mistakes in Jinja's syntax: the place where to mend them, plain words, and a cure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateSyntaxError

from fafo_build.render.environment import PromptEnvironment
from fafo_build.render.syntax import Mistake, explain

BRACES = "write {{ … }} around an expression, {% … %} around a statement"


def explained(source: str) -> Mistake:
    environment = PromptEnvironment({})
    with pytest.raises(TemplateSyntaxError) as caught:
        environment.parse(source)
    return explain(source, caught.value, environment)


CASES = [
    (
        "a\n\n {% for x in y %}\n{{ x }}\nz",
        3,
        2,
        "the {% for %} of line 3 is never closed",
        "add {% endfor %}",
    ),
    ("{% if a %}{% for x in y %}", 1, 11, "the {% for %} of line 1 is never closed", "add {% endfor %}"),
    (
        "{% if a %}{% for x in y %}{% endfor %}",
        1,
        1,
        "the {% if %} of line 1 is never closed",
        "add {% endif %}",
    ),
    ("{% set a = 1 %}\n{% set b %}\nx", 2, 1, "the {% set %} of line 2 is never closed", "add {% endset %}"),
    ("x\n  {%- macro m(a) -%}\n x", 2, 3, "the {% macro %} of line 2 is never closed", "add {% endmacro %}"),
    (
        "{% for x in y %}\n{% if x %}\n{% endfor %}",
        3,
        1,
        "{% endfor %} stands where the {% if %} of line 2 isn't closed yet",
        "write {% endif %} first",
    ),
    ("a\n{% endfor %}", 2, 1, "{% endfor %} closes nothing", "take it out, or write {% for … %} before"),
    ("{% else %}", 1, 1, "{% else %} stands in no {% if %} or {% for %}", "write {% if … %} before"),
    (
        "{% for x in y %}{% elif x %}{% endfor %}",
        1,
        17,
        "{% elif %} stands in no {% if %}",
        "close what is open first: {% endfor %}",
    ),
    ("\n{% forr x in y %}{% endfor %}", 2, 1, "there is no tag {% forr %}", "did you mean {% for %}?"),
    ("{% item.text %}", 1, 1, "there is no tag {% item %}", "write {{ … }} around an expression"),
    ("a {{ item.text", 1, 3, "the {{ of line 1 is never closed", "add }}"),
    ("a\n{% if x", 2, 1, "the {% of line 2 is never closed", "add %}"),
    ("a {# never\nclosed", 1, 3, "the {# of line 1 is never closed", "add #}"),
    ("a\n{% raw %} {{", 2, 1, "the {% raw %} of line 2 is never closed", "add {% endraw %}"),
    ("a\n{{ item.text }\n", 2, 14, "unexpected '}' between the {{ of line 2 and its }}", BRACES),
    ("a {{ item.text ? }}", 1, 16, "unexpected '?' between the {{ of line 1 and its }}", BRACES),
    ("{{ item.a) }}", 1, 10, "unexpected ')' between the {{ of line 1 and its }}", BRACES),
]


@pytest.mark.parametrize(("source", "line", "column", "message", "cure"), CASES)
def test_in_plain_words(source: str, line: int, column: int, message: str, cure: str) -> None:
    assert explained(source) == Mistake(message, line, column, cure)


@pytest.mark.parametrize(
    ("source", "line", "column", "cure"),
    [
        ("a\n{{ item.text item.name }}", 2, 14, BRACES),
        ("a\n {% for x of item.list %}{% endfor %}", 2, 11, "{% for x in item.list %} … {% endfor %}"),
        ("{% if x = 1 %}{% endif %}", 1, 9, "{% if item.x %} … {% elif"),
        ("{% if x %}{{ x + }}{% endif %}", 1, 18, BRACES),
        ("{% include %}", 1, 12, "{% include 'other.md' %}"),
        ("{{ item. }}", 1, 10, BRACES),
    ],
)
def test_elsewhere_with_jinja_s_words_at_the_place(source: str, line: int, column: int, cure: str) -> None:
    found = explained(source)
    assert found.message.startswith("Jinja: ")
    assert (found.line, found.column) == (line, column)
    assert cure in (found.cure or "")


def test_a_block_that_is_defined_twice_has_a_cure() -> None:
    source = "{% block a %}{% endblock %}\n{% block a %}{% endblock %}"
    error = TemplateSyntaxError("block 'a' defined twice", 2)
    found = explain(source, error, PromptEnvironment({}))
    assert found == Mistake("Jinja: block 'a' defined twice", 2, None, "give each block a name of its own")


PIECES = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    " ",
    "\n",
    "x",
    "for",
    "in",
    "if",
    "set",
    "=",
    "else",
]
PIECES += ["endfor", "endif", "endset", "raw", "endraw", "'", '"', "(", ")", "}", "|", ".", "1", "é", "?"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_whatever_is_written_the_place_is_in_the_template(source: str) -> None:
    environment = PromptEnvironment({})
    try:
        environment.parse(source)
    except TemplateSyntaxError as error:
        found = explain(source, error, environment)
        lines = source.split("\n")
        assert 1 <= found.line <= len(lines)
        assert found.column is None or 1 <= found.column <= len(lines[found.line - 1]) + 1
        assert found.cure
