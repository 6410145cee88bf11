"""The few-shot rows of a class: reads them, and says where each stands. Knows nothing of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.render.sources import normalised

_CURE = 'write one JSON object on each line, such as {"text": "…"}'


def read_examples(project: Project, declared: PromptClass) -> tuple[Mapping[str, Any], ...]:
    """Return the few-shot rows of a class, none if it declares none.

    Raises `BakeError` when the file isn't there or has no row, or with every line of it that isn't a JSON
    object.
    """
    if declared.examples is None:
        return ()
    file = declared.examples.path
    rows: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for number, line in _lines(project, declared):
        row, problem = _row(line, file, number)
        if problem is None:
            rows.append(row)
        else:
            problems.append(problem)
    if not rows and not problems:
        field = f"class.{declared.name}.examples"
        cure = "put rows into it, one JSON object on each line, or take [examples] out of the class"
        problems.append(Problem("has no example", file=file, field=field, cure=cure))
    if problems:
        raise BakeError(problems)
    return tuple(rows)


def place_of_example(project: Project, declared: PromptClass, row: int) -> str:
    """Return where the 0-based `row` of `read_examples` stands: `prompts/examples.jsonl:3`."""
    numbers = [number for number, _ in _lines(project, declared)]
    file = declared.examples.path if declared.examples else ""
    return f"{file}:{numbers[row]}"


def _lines(project: Project, declared: PromptClass) -> Iterator[tuple[int, str]]:
    """Yield the lines with something on them, with their 1-based numbers."""
    file = declared.examples.path if declared.examples else ""
    for number, line in enumerate(_text(project.root / file, declared, file).split("\n"), 1):
        if line.strip():
            yield number, line


def _row(line: str, file: str, number: int) -> tuple[dict[str, Any], Problem | None]:
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
                cure="name a JSONL file in the project",
            )
        ) from error
