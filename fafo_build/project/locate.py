"""Finds where in the project's files a problem's field stands, for problems that are found after the loading.

Whoever finds out that a column or a server isn't there knows the field, and not the file's lines.
"""

from __future__ import annotations

from pathlib import Path

from attrs import evolve

from fafo_build.errors import DeclarationError, FafoError, Problem
from fafo_build.project.document import Document, read_document
from fafo_build.project.load import find_root
from fafo_build.project.report import field_path


def located(error: FafoError, start: Path) -> FafoError:
    """Return the error with the place of every problem that names a field and no line.

    `start` is a folder in the project. What can't be found stays as it is.
    """
    try:
        root = find_root(start)
    except DeclarationError:
        return error
    documents: dict[str, Document | None] = {}
    return type(error)(_located(problem, root, documents) for problem in error.problems)


def _located(problem: Problem, root: Path, documents: dict[str, Document | None]) -> Problem:
    # An environment variable stands in no file.
    if problem.field is None or problem.line is not None or problem.field.startswith("FAFO_"):
        return problem
    prefix, file = _file_of(problem)
    if file not in documents:
        documents[file] = _read(root, file)
    document = documents[file]
    if document is None:
        return problem
    wanted = problem.field.removeprefix(prefix)
    best = max(
        (path for path in document.paths if _covers(field_path(path, document.data), wanted)),
        key=lambda path: len(field_path(path, document.data)),
        default=(),
    )
    found = document.problem(best, problem.message, at="value", field=problem.field, cure=problem.cure)
    return evolve(problem, file=file, line=found.line, column=found.column, source_line=found.source_line)


def _file_of(problem: Problem) -> tuple[str, str]:
    """Return what the field has before the path within its file, and the file."""
    field = problem.field or ""
    if field.startswith("class.") and problem.file is not None:
        return field[: len("class.") + len(Path(problem.file).stem)] + ".", problem.file
    return "", problem.file or "fafo.toml"


def _covers(outer: str, field: str) -> bool:
    """Tell whether a path is that of a field, or of a table around it."""
    return field == outer or field.startswith((f"{outer}.", f"{outer}["))


def _read(root: Path, file: str) -> Document | None:
    if not file.endswith(".toml"):
        return None
    try:
        return read_document(root / file, file)
    except DeclarationError:
        return None
