"""The few-shot rows of a class: reads them, and says where each stands. Knows nothing of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fafo_build.errors import BakeError, DeclarationError, Problem
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.project.document import Document, read_document
from fafo_build.project.values import plain
from fafo_build.render.sources import normalised

_CURE = 'write one JSON object on each line, such as {"text": "…"}'
_LIST_CURE = "write each object on a line of its own, without the brackets: jq -c '.[]' makes that of a list"
_TOML_CURE = 'write [[example]] for each, and below it keys such as text = "…"'


def read_examples(project: Project, declared: PromptClass) -> tuple[Mapping[str, Any], ...]:
    """Return the few-shot rows of a class, none if it declares none.

    Raises `BakeError` when the file isn't there or has no row, or with every row of it that isn't one.
    """
    if declared.examples is None:
        return ()
    file = declared.examples.path
    if _is_toml(file):
        rows, cure = _tables(_document(project, declared)), _TOML_CURE
    else:
        rows, cure = _objects(project, declared), _CURE
    if not rows:
        field = f"class.{declared.name}.examples"
        cure = f"{cure}; or take [examples] out of the class"
        raise BakeError(Problem("has no example", file=file, field=field, cure=cure))
    return rows


def place_of_example(project: Project, declared: PromptClass, row: int) -> str:
    """Return where the 0-based `row` of `read_examples` stands: `prompts/examples.jsonl:3`."""
    file = declared.examples.path if declared.examples else ""
    if _is_toml(file):
        return (
            _document(project, declared).problem(("example", row), "", at="table", field="", cure=None).where
        )
    numbers = [number for number, _ in _lines(project, declared)]
    return f"{file}:{numbers[row]}"


def _is_toml(file: str) -> bool:
    return file.endswith(".toml")


def _document(project: Project, declared: PromptClass) -> Document:
    file = declared.examples.path if declared.examples else ""
    try:
        return read_document(project.root / file, file)
    except DeclarationError as error:
        raise BakeError(error.problems) from error


def _tables(document: Document) -> tuple[Mapping[str, Any], ...]:
    rows = document.data.get("example", [])
    wrong = [key for key in document.data if key != "example"]
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        wrong.append("example")
    if wrong:
        message = "expected [[example]] tables, and nothing else"
        raise BakeError(
            document.problem((key,), message, at="key", field="", cure=_TOML_CURE) for key in wrong
        )
    return tuple(plain(row) for row in rows)


def _objects(project: Project, declared: PromptClass) -> tuple[Mapping[str, Any], ...]:
    file = declared.examples.path if declared.examples else ""
    rows: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for number, line in _lines(project, declared):
        if not rows and not problems and line.lstrip().startswith("["):
            # Each line would have its own complaint, and none would say what is wrong.
            message = "a JSON list: expected one JSON object on each line"
            raise BakeError(Problem(message, file, number, source_line=line, cure=_LIST_CURE))
        row, problem = _object(line, file, number)
        if problem is None:
            rows.append(row)
        else:
            problems.append(problem)
    if problems:
        raise BakeError(problems)
    return tuple(rows)


def _lines(project: Project, declared: PromptClass) -> Iterator[tuple[int, str]]:
    """Yield the lines with something on them, with their 1-based numbers."""
    file = declared.examples.path if declared.examples else ""
    for number, line in enumerate(_text(project.root / file, declared, file).split("\n"), 1):
        if line.strip():
            yield number, line


def _object(line: str, file: str, number: int) -> tuple[dict[str, Any], Problem | None]:
    column = None
    try:
        row = json.loads(line)
        # Half a surrogate pair can be written in JSON, and is no text.
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        message, column = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.colno
    except UnicodeEncodeError:
        message = "not text: half a surrogate pair"
    except (ValueError, RecursionError) as error:
        message = f"not JSON that can be read: {error}"
    else:
        if isinstance(row, dict):
            return row, None
        message = "an example must be a JSON object"
    return {}, Problem(message, file, number, column, source_line=line, cure=_CURE)


def _text(path: Path, declared: PromptClass, file: str) -> str:
    try:
        return normalised(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise BakeError(
            Problem(
                f'the examples "{file}" can\'t be read: {why}',
                file=declared.file,
                field=f"class.{declared.name}.examples.path",
                cure="name a JSONL or a TOML file in the project",
            )
        ) from error
