"""Durations, sizes and misspelt words; and no file, however strange, ends in anything but a clear error."""

from __future__ import annotations

import datetime
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from project_files import EXAM, MAIN, write

from fafo_build.errors import DeclarationError
from fafo_build.project.load import load_project
from fafo_build.project.values import MistakeError, did_you_mean, duration, size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90s", 90.0),
        ("15m", 900.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["", "15", "m", "15 m", "15m ", "-1s", "1y", 0, -1, "0s", True, [], float("nan"), float("inf")]
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(MistakeError):
        duration(written)


@pytest.mark.parametrize(
    ("written", "size_in_bytes"),
    [
        (8192, 8192),
        ("1B", 1),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("256MiB", 2**28),
        ("1.5 GiB", 3 * 2**29),
        ("1gb", 10**9),
        ("2TiB", 2**41),
    ],
)
def test_sizes(written: object, size_in_bytes: int) -> None:
    assert size(written) == size_in_bytes


@pytest.mark.parametrize("written", ["", "256", "MiB", "256 XiB", "-1KiB", 1.5, True, []])
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(MistakeError):
        size(written)


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("max_tokens", "did you mean max_new_tokens?"),
        ("TEMPERATURE", "did you mean temperature?"),
        ("x", "the keys here: max_new_tokens, temperature"),
    ],
)
def test_did_you_mean(word: str, cure: str) -> None:
    assert did_you_mean(word, ["max_new_tokens", "temperature"], what="the keys here") == cure


_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_anything = st.recursive(
    st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | _text
    | st.sampled_from(["files", "sql", "dataset", "sglang", "user", "elements", "default", "15m", "1MiB"])
    | st.dates(min_value=datetime.date(1000, 1, 1))
    | st.times(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for part, below in list(inner):
        found += [(value, part), *_places(below)]
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_change_of_a_project_is_read_or_refused_with_a_place_and_a_cure(data: st.DataObject) -> None:
    files = [tomllib.loads(MAIN), tomllib.loads(EXAM)]
    for _ in range(data.draw(st.integers(1, 3))):
        table, part = data.draw(st.sampled_from([place for file in files for place in _places(file)]))
        if isinstance(table, dict):
            change = data.draw(st.sampled_from(["set", "add", "drop"]))
            if change == "drop":
                table.pop(part, None)
            else:
                table[part if change == "set" else data.draw(_text)] = data.draw(_anything)
        elif part < len(table):
            table[part] = data.draw(_anything)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), tomli_w.dumps(files[0]), exam=tomli_w.dumps(files[1]))
        try:
            project = load_project(Path(folder), {})
        except DeclarationError as error:
            for problem in error.problems:
                assert problem.file
                assert problem.cure
                assert (problem.line is None) == (problem.source_line is None)
                problem.render()
        else:
            assert project.classes
