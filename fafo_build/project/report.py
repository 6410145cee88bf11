"""Gathers what is wrong in all files of a project, so that one run shows everything there is to mend."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fafo_build.errors import Problem
from fafo_build.project.document import Document
from fafo_build.project.structure import Complaint
from fafo_build.project.values import Path


class Report:
    """The problems found so far."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(
        self,
        document: Document,
        complaints: Iterable[Complaint],
        prefix: str = "",
        origin: Mapping[Path, str] | None = None,
    ) -> None:
        """Take complaints about one file.

        `prefix` goes before the path of each (`class.exam`); `origin` says which values came from an
        environment variable, so that nobody looks for them in the file.
        """
        found = []
        for complaint in complaints:
            variable = _variable(complaint.path, origin or {})
            if variable is not None:
                found.append(Problem(complaint.message, field=variable, cure=complaint.cure))
                continue
            field = ".".join(part for part in (prefix, field_path(complaint.path, document.data)) if part)
            found.append(
                document.problem(
                    complaint.path, complaint.message, at=complaint.at, field=field, cure=complaint.cure
                )
            )
        self.problems.extend(sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _variable(path: Path, origin: Mapping[Path, str]) -> str | None:
    for length in range(len(path), 0, -1):
        if path[:length] in origin:
            return origin[path[:length]]
    return None


def field_path(path: Path, table: Mapping[str, Any]) -> str:
    """Return a path as people know it: `source.elements.key`, `message[2].role` (the first is 1)."""
    shown = ""
    value: Any = table
    for part in path:
        value = _inside(value, part)
        if isinstance(part, str):
            key = part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part, ensure_ascii=False)
            shown += f".{key}" if shown else key
        elif shown == "source" and isinstance(value, Mapping) and isinstance(value.get("name"), str):
            shown += f".{value['name']}"
        else:
            shown += f"[{part + 1}]"
    return shown


def _inside(value: Any, part: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(str(part))
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None
