"""`classes/NAME.toml`: one class. Knows of the rest of the project only the names that a class refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from fafo_build.errors import Problem
from fafo_build.project.checks import NAME, NAME_RULE
from fafo_build.project.declaration import PromptClass
from fafo_build.project.document import Document
from fafo_build.project.main_file import Names
from fafo_build.project.report import Report
from fafo_build.project.structure import Complaint, given, structure
from fafo_build.project.values import describe, did_you_mean


def read_class_file(document: Document, names: Names | None, report: Report) -> PromptClass | None:
    """Return the class that a file declares, or None; problems go to the report.

    `names` is None where `fafo.toml` couldn't be read: then no reference is checked.
    """
    name = PurePath(document.file).stem
    if not NAME.fullmatch(name):
        message = f"a class is called as its file, and {describe(name)} is no name"
        report.problems.append(
            Problem(message, file=document.file, cure=f"rename the file; a name has {NAME_RULE}")
        )
    written = document.data
    if not written:
        report.problems.append(
            Problem("the file says nothing", file=document.file, cure="give it sources and a [[message]]")
        )
        return None
    table = given({**written, **_engine_and_model(written, names)}, name=name, file=document.file)
    if isinstance(written.get("message"), list):
        table["message"] = [
            given(message, line=_line(document, index, message))
            for index, message in enumerate(written["message"])
        ]
    made, complaints = structure(table, PromptClass, ())
    if names is not None:
        complaints.extend(_references(written, names))
    report.add(document, complaints, prefix=f"class.{name}")
    return made


def _line(document: Document, index: int, message: Any) -> int:
    content = message.get("content") if isinstance(message, Mapping) else None
    return document.line_of_text(("message", index, "content")) if isinstance(content, str) else 1


def _engine_and_model(written: Mapping[str, Any], names: Names | None) -> dict[str, str]:
    """Return what a class needn't say: the only model and the only engine."""
    chosen = {}
    for key, known in _choices(names):
        if key not in written and len(known) == 1:
            chosen[key] = known[0]
    return chosen


def _choices(names: Names | None) -> Sequence[tuple[str, tuple[str, ...]]]:
    return (("model", names.models), ("engine", names.engines)) if names is not None else ()


def _references(written: Mapping[str, Any], names: Names) -> Iterator[Complaint]:
    for key, known in _choices(names):
        name = written.get(key, "default")
        # Where there is none at all, fafo.toml has been told so.
        if not known or not isinstance(name, str) or name in known:
            continue
        if key in written:
            cure = did_you_mean(name, known, what=f"the {key}s of this project")
            yield Complaint((key,), f"the project has no {key} {describe(name)}", cure, "value")
        elif len(known) > 1:
            message = f"the project has several {key}s, and the class doesn't say which is meant"
            yield Complaint((), message, f"add {key} = {' or '.join(map(describe, known))}", "table")
    sources = written.get("sources")
    listed = [sources] if isinstance(sources, str) else sources if isinstance(sources, list) else ()
    for index, name in enumerate(listed):
        if isinstance(name, str) and names.sources and name not in names.sources:
            path = ("sources",) if isinstance(sources, str) else ("sources", index)
            cure = did_you_mean(name, names.sources, what="the sources of this project")
            yield Complaint(path, f"the project has no source {describe(name)}", cure, "value")
