"""What a template sees of a row, and what a row must not do to a prompt."""

from __future__ import annotations

import pytest

from fafo_build.render.marks import Marked, Trim
from fafo_build.render.message import MessageRenderer, RowError

ROW = {
    "text": "Oslo",
    "capital": None,
    "items": "a column",
    "nested": {"keys": "inner", "void": None, "list": [1, None]},
    "empty": "",
    "html": "<b>&'",
}


def render(template: str, fields: dict[str, object] | None = None, **variables: object) -> str:
    renderer = MessageRenderer({"#m": template}, variables, ({"q": "one", "a": None},))
    return renderer.render("#m", ROW if fields is None else fields, "elements", "Fe").text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ item.text }}", "Oslo"),
        ("{{ item['text'] }}", "Oslo"),
        ("{{ item_source }}/{{ item_key }}", "elements/Fe"),
        ("{{ item.items }}", "a column"),
        ("{{ item.nested.keys }}", "inner"),
        ("{{ item['nested']['keys'] }}", "inner"),
        ("{{ examples[0].q }}", "one"),
        ("{{ audience }}, {{ vars.audience }}", "students, students"),
        ("{% for name in item %}{{ name }} {% endfor %}", "text capital items nested empty html "),
        ("{{ item.html }}", "<b>&'"),
        ("{{ item.html | tojson }}", '"<b>&\'"'),
        ("{{ item.nested.list | tojson }}", "[1, null]"),
        ("{{ item | length }}", "6"),
        ("{{ item.capital is none }} {{ item.capital is defined }}", "True False"),
        ("{{ 'yes' if item.capital else 'no' }}", "no"),
        ("{{ item.capital | default('none given') }}", "none given"),
        ("{{ item.capital or 'none given' }}", "none given"),
        ("{{ item.absent is defined }}", "False"),
        ("{{ item.absent | default('x') }}", "x"),
        ("a\n", "a\n"),
    ],
)
def test_renders(template: str, expected: str) -> None:
    assert render(template, audience="students") == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ item.capital }}",
        "{{ item['capital'] }}",
        "{{ 'x' ~ item.capital }}",
        "{{ item.capital | upper }}",
        "{{ item.capital | length }}",
        "{{ item.capital | tojson }}",
        "{{ item.capital | hole(special_tokens=true) }}",
        "{% for letter in item.capital %}{% endfor %}",
        "{{ item.capital.name }}",
        "{{ [item.capital] | join }}",
        "{% if item.capital > 3 %}{% endif %}",
    ],
)
def test_a_null_field_is_loud_and_named(template: str) -> None:
    with pytest.raises(RowError, match=r"^field 'capital' is null$"):
        render(template)


def test_a_null_deeper_down_is_loud_too() -> None:
    with pytest.raises(RowError, match="field 'void' is null"):
        render("{{ item.nested.void }}")
    with pytest.raises(RowError, match="element 1 is null"):
        render("{{ item.nested.list[1] }}")
    with pytest.raises(RowError, match="a null can't be printed"):
        render("{% for each in item.nested.list %}{{ each }}{% endfor %}")


def test_a_missing_column_names_the_nearest() -> None:
    with pytest.raises(RowError, match=r"^the row has no field 'captial'; did you mean 'capital'\?$"):
        render("{{ item.captial }}")
    with pytest.raises(RowError, match=r"^the row has no field 'zzz'$"):
        render("{% if item.zzz %}{% endif %}")


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ item.get }}", "can't be printed"),
        ("{{ [item.get] }}", "can't be printed"),
        ("{{ examples | map(attribute='q') }}", "generator can't be printed; end it with a filter"),
        ("{{ range }}", "can't be printed"),
        ("{{ item.text / 2 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ vars.list.append(1) }}", "unsafe|not safely"),
        ("{{ item.text | truncate(2) }}", "AssertionError: expected length >= 3"),
        ("{{ cycler() }}", "RuntimeError: at least one item"),
        ("{{ 'x' ~ range }}", "is put out as at 0x"),
        ("{{ '%s' | format(item.text.upper) }}", "is put out as at 0x"),
        ("{{ [cycler(1)] | join }}", "is put out as at 0x"),
        ("{{ '{}'.format(examples | map('upper')) }}", "is put out as at 0x"),
    ],
)
def test_what_a_row_cannot_give_ends_in_one_line(template: str, why: str) -> None:
    with pytest.raises(RowError, match=why) as caught:
        render(template, list=[1])
    assert "\n" not in str(caught.value)


def test_an_error_in_an_included_prompt_names_it() -> None:
    renderer = MessageRenderer({"#message[0]": "{% include 'a.md' %}", "a.md": "{{ item.x }}"}, {}, ())
    with pytest.raises(RowError, match=r"no field 'x' \(in a.md\)"):
        renderer.render("#message[0]", {"y": 1}, "s", "k")


def test_a_row_may_speak_of_places_in_memory() -> None:
    row = {"trace": ["<function f at 0x7f00>"]}
    assert render("a {{ item.trace | join }}", row) == "a <function f at 0x7f00>"
    assert (
        render("{{ words.a | upper }} <g at 0x1>", {}, words={"a": "<f at 0x1>"}) == "<F AT 0X1> <g at 0x1>"
    )


@pytest.mark.parametrize("name", ["now", "random", "lipsum"])
def test_nothing_volatile_exists(name: str) -> None:
    with pytest.raises(RowError, match="undefined"):
        render("{{ " + name + "() }}")


def test_only_marked_text_may_become_special_tokens() -> None:
    renderer = MessageRenderer(
        {"m": "a{{ item.x }}b{{ item.x | hole(special_tokens=true) }}c{{ item.x | hole }}"}, {}, ()
    )
    assert renderer.render("m", {"x": "<s>"}, "", "") == Marked("a<s>b<s>c<s>", ((5, 8),))
    assert renderer.render("m", {"x": ""}, "", "") == Marked("abc")


def test_marks_cannot_be_forged_from_another_renderer() -> None:
    template = "{{ item.x | hole(special_tokens=true) }}"
    first = MessageRenderer({"m": template}, {}, ())
    forged = first._environment.marks.hole("<s>", special_tokens=True)
    second = MessageRenderer({"m": "{{ item.x }}"}, {}, ())
    assert second.render("m", {"x": forged}, "", "") == Marked(forged)


def test_a_torn_mark_is_an_error() -> None:
    with pytest.raises(RowError, match="hole"):
        render("{% filter truncate(50, true, '') %}{{ 'abc' | hole(special_tokens=true) }}{% endfilter %}")


@pytest.mark.parametrize(
    ("trim", "expected"),
    [
        (Trim(), Marked("  a<s> ", ((3, 6),))),
        (Trim(left=None), Marked("a<s> ", ((1, 4),))),
        (Trim(right=None), Marked("  a<s>", ((3, 6),))),
        (Trim(None, None), Marked("a<s>", ((1, 4),))),
        (Trim("\n", "\n"), Marked("  a<s> ", ((3, 6),))),
        (Trim(" a", "> "), Marked("<s", ((0, 2),))),
    ],
)
def test_trimming_moves_the_marked_regions(trim: Trim, expected: Marked) -> None:
    assert Marked("  a<s> ", ((3, 6),)).trimmed(trim) == expected
    assert Marked("  ").trimmed(Trim(None, None)) == Marked("")
