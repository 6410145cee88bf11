"""Errors are printed from one place; every kind, exit code and failure code is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_build import errors
from fafo_build.errors import DeclarationError, ExitCode, FafoError, Problem
from fafo_run.item import FailureCode, Stage

DOCS = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def test_a_problem_with_everything() -> None:
    problem = Problem(
        'expected a whole number, got "many"',
        file="fafo.toml",
        line=12,
        column=14,
        field="class.judge.sampling.max_new_tokens",
        source_line='max_tokens = "many"\n',
        cure="write a number",
    )
    assert problem.render().split("\n") == [
        'fafo.toml:12:14: class.judge.sampling.max_new_tokens: expected a whole number, got "many"',
        '    max_tokens = "many"',
        "                 ^",
        "  cure: write a number",
    ]


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        (Problem("it broke"), "it broke"),
        (Problem("it broke", file="a"), "a: it broke"),
        (Problem("it broke", file="a", line=3), "a:3: it broke"),
        (Problem("it broke", line=3, column=4), "it broke"),
        (Problem("it broke", field="run.lease"), "run.lease: it broke"),
        (Problem("it broke", source_line="x = 1"), "it broke\n    x = 1"),
        (Problem("it broke", cure="mend it"), "it broke\n  cure: mend it"),
    ],
)
def test_a_problem_with_less(problem: Problem, shown: str) -> None:
    assert problem.render() == shown


def caret(line: str, column: int) -> tuple[str, str]:
    _, shown, below = Problem("m", file="f", line=1, column=column, source_line=line).render().split("\n")
    return shown.removeprefix("    "), below.removeprefix("    ")


def test_the_caret_counts_cells_not_characters() -> None:
    assert caret("\t\tx", 3) == ("  x", "  ^")
    assert caret("数据 = x", 6) == ("数据 = x", "       ^")
    assert caret("e\u0301 = x", 6) == ("e\u0301 = x", "    ^")


def test_a_caret_past_the_end_of_the_line_stands_at_its_end() -> None:
    assert caret("ab", 9) == ("ab", "  ^")
    assert caret("", 1) == ("", "^")


def test_a_file_can_not_command_the_terminal() -> None:
    assert caret("a\x1b[31mb\x07\r", 3) == (r"a\x1b[31mb\x07", "     ^")
    assert caret("a\u202eb", 3) == (r"a\u202eb", "       ^")
    problem = Problem("m\x9b1m", file="\x1b[0m", cure="c\x07\nd\u2066")
    assert problem.render() == "\\x1b[0m: m\\x9b1m\n  cure: c\\x07\nd\\u2066"


@pytest.mark.parametrize("column", [1, 30, 2500, 5000, 5001])
def test_of_a_long_line_the_part_round_the_caret_is_shown(column: int) -> None:
    line = "".join(chr(ord("a") + index % 26) for index in range(5000))
    shown, below = caret(line, column)
    assert len(shown) <= 112
    if column <= len(line):
        assert shown[len(below) - 1] == line[column - 1]
    assert shown.startswith("…") == (column > 100)


def test_the_problems_of_an_error_are_apart() -> None:
    error = DeclarationError([Problem("one", cure="a"), Problem("two")])
    assert error.render() == "one\n  cure: a\n\ntwo"
    assert str(error) == "one\ntwo"
    assert error.exit_code is ExitCode.USER_ERROR


def test_an_error_of_one_problem() -> None:
    error = DeclarationError.of("it broke", cure="mend it", file="a", field="b")
    assert isinstance(error, DeclarationError)
    assert error.problems == (Problem("it broke", cure="mend it", file="a", field="b"),)


def _kinds() -> Iterator[type[FafoError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, FafoError) and value is not FafoError:
            yield value


def _documented(heading: str) -> set[str]:
    section = DOCS.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `?([\w]+)`? \|", section, flags=re.M))


def test_every_exit_code_is_documented() -> None:
    assert _documented("Exit codes") == {"code"} | {str(int(code)) for code in ExitCode}


def test_every_kind_of_error_is_documented() -> None:
    assert _documented("Kinds of errors") == {"kind"} | {kind.__name__ for kind in _kinds()}


def test_every_failure_code_is_documented() -> None:
    assert _documented("Failures of items") == {"code"} | {code.value for code in FailureCode}


def test_every_stage_is_documented() -> None:
    section = DOCS.split("\n## Failures of items\n")[1]
    assert all(f"`{stage.value}`" in section for stage in Stage)


def test_every_kind_says_what_it_means() -> None:
    assert all(kind.__doc__ for kind in _kinds())
