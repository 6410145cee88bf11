"""What a class tells its chat template besides the messages, files read in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fafo_build.errors import BakeError, Problem
from fafo_build.project.declaration import Project, PromptClass

_FROM_FILES = ("tools", "documents")
"""Names that transformers takes lists of tables for: a string names the JSON file that holds one."""


def kwargs_files(declared: PromptClass) -> dict[str, str]:
    """Return the files that a class's `chat_template_kwargs` name, relative to the project: name to file."""
    written = {name: declared.chat_template_kwargs.get(name) for name in _FROM_FILES}
    return {name: value for name, value in written.items() if isinstance(value, str)}


def read_kwargs(project: Project, declared: PromptClass) -> dict[str, Any]:
    """Return the arguments of a class's chat template.

    Raises `BakeError` for a file that can't be read, or holds something else than a list of tables.
    """
    files = kwargs_files(declared)
    read = {name: _tables(project, declared, name, file) for name, file in files.items()}
    return {**declared.chat_template_kwargs, **read}


def _tables(project: Project, declared: PromptClass, name: str, file: str) -> list[Any]:
    cure = f"write a JSON list of objects, as the model's chat template expects {name}"

    def error(message: str, line: int | None = None) -> BakeError:
        field = f"class.{declared.name}.chat_template_kwargs.{name}"
        return BakeError(Problem(message, file=file, line=line, field=field, cure=cure))

    try:
        value = json.loads((project.root / file).read_text("utf-8-sig"))
    except OSError as caught:
        raise error(f"can't be read: {caught.strerror}") from caught
    except UnicodeDecodeError as caught:
        raise error("can't be read: it isn't UTF-8") from caught
    except json.JSONDecodeError as caught:
        raise error(f"not JSON: {caught.msg.lower()}", caught.lineno) from caught
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise error("expected a list of objects")
    return value
