"""Every key and value of a TOML file is found where it stands."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterator
from typing import Any

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fafo_build.project.positions import Position, places

TEXT = '''\
# é comment with "quotes" and [brackets]
top = 1
a.b."c d" = 2 # after
[models.x]
"é" = "é"  # 한
wide = { "한국" = 1, list = [1, "x", [true]] }

[[message]]
content = """
first
second"""
[[message]]
content = """first
second"""
[message.sub]
many = [
  1,
  # between
  2,
]
[[message.deep]]
k = 1
[[message.deep]]
k = 2
[[message]]
content = \'\'\'literal\'\'\'
[[message.deep]]
k = 3
'''


def test_places_of_a_file_with_everything_in_it() -> None:
    found = places(TEXT)
    values = {path: (place.value.line, place.value.column) for path, place in found.items()}
    assert values[("top",)] == (2, 7)
    assert values[("a", "b", "c d")] == (3, 13)
    assert values[("models", "x")] == (4, 1)
    assert values[("models", "x", "é")] == (5, 7)
    assert values[("models", "x", "wide", "한국")] == (6, 17)
    assert values[("models", "x", "wide", "list", 1)] == (6, 31)
    assert values[("models", "x", "wide", "list", 2, 0)] == (6, 37)
    assert values[("message", 0)] == (8, 1)
    assert values[("message", 1, "sub", "many", 1)] == (19, 3)
    assert values[("message", 1, "deep", 0, "k")] == (22, 5)
    assert values[("message", 1, "deep", 1, "k")] == (24, 5)
    assert values[("message", 2, "deep", 0, "k")] == (28, 5)


def test_keys_have_their_own_place() -> None:
    found = places(TEXT)
    assert found[("models", "x", "wide", "list")].key == Position(6, 20)
    assert found[("a", "b", "c d")].key == Position(3, 1)
    assert found[("a", "b")].key == Position(3, 1)


def test_text_begins_after_its_quotes() -> None:
    found = places(TEXT)
    assert found[("message", 0, "content")].text == Position(10, 1)
    assert found[("message", 1, "content")].text == Position(13, 14)
    assert found[("message", 2, "content")].text == Position(26, 14)


_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.dates(min_value=datetime.date(1000, 1, 1)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=3)
    ),
    max_leaves=12,
)


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, below in inner:
        yield from _paths(below, (*path, part))


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), _values, max_size=4), st.booleans()
)
def test_every_path_of_any_file_has_a_place_where_its_value_is_written(
    table: dict[str, Any], multiline: bool
) -> None:
    text = tomli_w.dumps(table, multiline_strings=multiline)
    data = tomllib.loads(text)
    found = places(text)
    assert set(found) == set(_paths(data))
    lines = text.split("\n")
    for path, place in found.items():
        value = data
        for part in path:
            value = value[part]
        rest = lines[place.value.line - 1][place.value.column - 1 :]
        if isinstance(value, bool):
            assert rest.startswith(str(value).lower())
        elif isinstance(value, int):
            assert rest.startswith(str(value))
        elif isinstance(value, str):
            assert rest.startswith('"')
        elif isinstance(value, datetime.date):
            assert rest.startswith(value.isoformat())
