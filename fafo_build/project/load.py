"""From a folder on disk to a `Project`: finds it, reads it, shows all mistakes of all its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fafo_build.errors import DeclarationError, Problem
from fafo_build.project import overrides
from fafo_build.project.class_file import read_class_file
from fafo_build.project.declaration import Project, ProjectTable, PromptClass
from fafo_build.project.document import Document, read_document
from fafo_build.project.main_file import MainFile, Names, read_main_file
from fafo_build.project.report import Report

MAIN_FILE = "fafo.toml"


def find_root(start: Path) -> Path:
    """Return the folder with `fafo.toml`: `start`, or the nearest above it.

    Raises `DeclarationError` when there is none.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / MAIN_FILE).exists():
            return folder
    raise DeclarationError(
        Problem(
            f"there is no {MAIN_FILE} in {start} or above it",
            cure="go to a project's folder, name one with -C DIR, or begin one with `fafo init`",
        )
    )


def active_overrides(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the environment variables that override keys of the project, never their values."""
    return overrides.active(env)


def load_project(root: Path, env: Mapping[str, str] = os.environ) -> Project:
    """Return what the project in `root` declares. Reads `fafo.toml` and the class files, and nothing else.

    Raises `DeclarationError` with everything that is wrong in these files.
    """
    root = root.resolve()
    report = Report()
    main: MainFile | None = None
    document = _read(root / MAIN_FILE, MAIN_FILE, report)
    if document is not None and not document.data:
        cure = "`fafo init` writes a small project that runs"
        report.problems.append(Problem("the file says nothing", file=MAIN_FILE, cure=cure))
    elif document is not None:
        main = read_main_file(document, env, report)
    folders = (main and main.project) or ProjectTable(name="")
    if document is None and not (root / folders.classes).is_dir():
        # Where the classes are is written in the file that can't be read.
        raise DeclarationError(report.problems)
    classes = _classes(root, folders.classes, main.names if main else None, report)
    if main is None or report.problems:
        raise DeclarationError(report.problems)
    return Project(
        root=root,
        name=folders.name,
        models=main.models,
        engines=main.engines,
        sources=main.sources,
        classes=classes,
        run=main.run,
        verify=main.verify,
        prompts_dir=root / folders.prompts,
        classes_dir=root / folders.classes,
        build_dir=root / folders.build,
        runs_dir=root / folders.runs,
    )


def _read(path: Path, file: str, report: Report) -> Document | None:
    try:
        return read_document(path, file)
    except DeclarationError as error:
        report.problems.extend(error.problems)
        return None


def _classes(root: Path, folder: str, names: Names | None, report: Report) -> dict[str, PromptClass]:
    found: dict[str, PromptClass] = {}
    cure = "make a file NAME.toml there, with sources and a [[message]]"
    try:
        names_of_files = sorted(path.name for path in (root / folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        report.problems.append(Problem("there is no such folder of classes", file=folder, cure=cure))
        return found
    except OSError as error:
        message = f"the folder can't be read: {error.strerror}"
        report.problems.append(Problem(message, file=folder, cure="check its permissions"))
        return found
    files = [name for name in names_of_files if name.endswith(".toml") and not name.startswith(".")]
    if not files:
        report.problems.append(Problem("the folder has no class", file=folder, cure=cure))
    for name in files:
        file = f"{folder.rstrip('/')}/{name}"
        document = _read(root / folder / name, file, report)
        made = read_class_file(document, names, report) if document is not None else None
        if made is not None:
            found[made.name] = made
    return dict(sorted(found.items()))
