"""A small project of two classes to build, and a model that is loaded once for all tests of a process."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from bake_kit import project, prompt_class, smollm2, write

from fafo_build.bake import compile as compile_module
from fafo_build.bake.plan import plan_build
from fafo_build.project.declaration import Message, Project, PromptClass
from fafo_build.tokens import model_files


@pytest.fixture(autouse=True)
def quick_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the model once; the tests of the command line load it for real."""

    def ready(_: object, __: str, date: datetime.date | None) -> object:
        return smollm2()

    monkeypatch.setattr(model_files, "load_model", lambda model, root: None)
    monkeypatch.setattr(compile_module, "ready", ready)


def exam(root: Path, comment: str = "", end: str = "") -> PromptClass:
    return prompt_class(
        root,
        Message("system", prompt="system.md"),
        ("user", "{{ examples[0].q }} {{ item.text }}" + end),
        examples=['{"q": "What?"}'],
        comment=comment,
    )


def child(root: Path) -> PromptClass:
    return prompt_class(root, ("user", "Explain {{ item.text }}"), name="child")


def small(root: Path) -> Project:
    write(root, {"prompts/system.md": "{% include 'common.md' %} Ask.", "prompts/common.md": "Be brief."})
    return project(root, exam(root), child(root))


def change_prompt(root: Path, text: str = "Be very brief.") -> None:
    write(root, {"prompts/common.md": text})


def reasons(project: Project) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {plan.name: (plan.state, plan.reasons) for plan in plan_build(project).classes}


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder but the locks of builds, by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
