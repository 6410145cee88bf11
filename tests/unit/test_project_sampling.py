"""What `[sampling]` of a class may say, and where it is told that it can't."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import EXAM, change, problems, write

from fafo_build.project.declaration import Sampling
from fafo_build.project.load import load_project

OLD = EXAM[EXAM.index("[sampling]") :]


def exam(sampling: str) -> str:
    return EXAM.replace(OLD, f"[sampling]\n{sampling}\n")


LINE = exam("").split("\n").index("[sampling]") + 2


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("frequency_penalty", "2.5", ": expected -2 to 2, got 2.5"),
        ("presence_penalty", "-3", ": expected -2 to 2, got -3"),
        ("presence_penalty", "nan", ": expected a number, got nan"),
        ("repetition_penalty", "0", ": expected more than 0 and at most 2, got 0"),
        ("repetition_penalty", "2.1", ": expected more than 0 and at most 2, got 2.1"),
        ("stop", '""', ": expected a text that isn't empty"),
        ("stop", '["a", ""]', "[2]: expected a text that isn't empty"),
        ("stop", '["a", "b", "a"]', '[3]: "a" is listed twice'),
        ("stop", str([str(n) for n in range(33)]), ": expected at most 32 texts, got 33"),
        ("stop", "3", ": expected a string or a list of strings, got 3"),
        ("stop_token_ids", "[5, -1]", "[2]: expected 0 or more, got -1"),
        ("stop_token_ids", "[5, 7, 5]", "[3]: 5 is listed twice"),
        ("stop_token_ids", '["</s>"]', '[1]: expected a whole number, got "</s>"'),
        ("stop_token_ids", "[true]", "[1]: expected a whole number, got true"),
        ("stop_token_ids", "7", ": expected a list, got 7"),
        ("json_schema", '" "', ": expected a text that isn't empty"),
        ("json_schema", '{ type = "object" }', ": expected a string, got a table"),
        ("regex", "''", ": expected a text that isn't empty"),
        ("regex", "'[a-z'", ": not a regular expression: unterminated character set at position 0"),
        ("regex", "'(yes|no'", ": not a regular expression: missing ), unterminated subpattern"),
        ("regex", "'*'", ": not a regular expression: nothing to repeat"),
        ("regex", r'"a\u0000"', ": a NUL character can't stand here"),
        ("ebnf", '"\\n"', ": expected a text that isn't empty"),
        ("ebnf", '"grammars/answer.ebnf"', ': expected a grammar, and "grammars/answer.ebnf" has no rule'),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_stands(
    key: str, value: str, expected: str, tmp_path: Path
) -> None:
    shown = problems(write(tmp_path, exam=exam(f"{key} = {value}")))
    assert f"classes/exam.toml:{LINE}:" in shown
    assert f": class.exam.sampling.{key}{expected}" in shown
    assert "cure: " in shown


@pytest.mark.parametrize(
    "regex",
    [
        r"\d+",
        r"\p{L}+",
        r"[\p{Lu}\x{41}]",
        r"(?<year>\d{4})",
        r"(?<=a)b",
        r"\\p{x",
        r"a\z",
        r"[[a]b]",
        "日本|é",
    ],
)
def test_a_regex_of_any_dialect_passes(regex: str, tmp_path: Path) -> None:
    """The server's dialect isn't known at build; only what is broken in all of them is refused."""
    assert problems(write(tmp_path, exam=exam(f"regex = '{regex}'"))) == ""


@pytest.mark.parametrize(
    ("first", "second"), [("json_schema", "regex"), ("regex", "ebnf"), ("ebnf", "json_schema")]
)
def test_an_output_has_one_form(first: str, second: str, tmp_path: Path) -> None:
    shown = problems(write(tmp_path, exam=exam(f"{first} = 'a:b'\n{second} = 'a:b'")))
    assert (
        f"classes/exam.toml:{LINE + 1}:1: class.exam.sampling.{second}: "
        f"an output has one form, and both {first} and {second} give it one"
    ) in shown
    assert "cure: keep the one that is meant" in shown


@pytest.mark.parametrize("temperature", ["0", "0.0"])
def test_samples_of_a_greedy_class_would_be_one_output(temperature: str, tmp_path: Path) -> None:
    text = change(EXAM, "temperature = 0.8", f"temperature = {temperature}")
    shown = problems(write(tmp_path, exam=text))
    assert "class.exam.sampling.samples: with temperature 0 all 2 samples of a row are the same" in shown
    assert "cure: raise temperature, or take samples out" in shown
    assert problems(write(tmp_path, exam=change(text, "samples = 2", "samples = 1"))) == ""


def test_what_may_be_said(tmp_path: Path) -> None:
    text = """
    stop = "\\n"
    stop_token_ids = [5, 0]
    frequency_penalty = -2
    presence_penalty = 0.5
    repetition_penalty = 2
    ebnf = 'root ::= "yes" | "no"'
    """
    found = load_project(write(tmp_path, exam=exam(text))).classes["exam"].sampling
    assert found == Sampling(
        stop=("\n",),
        stop_token_ids=(5, 0),
        frequency_penalty=-2.0,
        presence_penalty=0.5,
        repetition_penalty=2.0,
        ebnf='root ::= "yes" | "no"',
    )
