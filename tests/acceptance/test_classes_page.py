"""docs/classes.md, word for word: its files make one project, and its commands print what it says."""

from __future__ import annotations

import datetime
import difflib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from attrs import frozen
from click.testing import CliRunner

from fafo_build.bake import compile as compile_module
from fafo_build.bake import now
from fafo_build.errors import FafoError
from fafo_build.tokens import model_files
from fafo_build.tokens.model_files import LoadedModel
from fafo_run.cli import cli
from tests.helpers import REPO, fafo

PAGE = (REPO / "docs" / "classes.md").read_text("utf-8")
_BLOCK = re.compile(
    r"(?:^\*\*`(?P<file>[^`\n]+)`\*\*\n\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ENDS = {"toml": ".toml", "json": (".json", ".jsonl"), "jinja": (".md", ".jinja")}
WRONG = "classes/wrong.toml"
"""The class that the page writes to be refused."""
NOT_RUN = ("form", "think")
"""The class whose answers have a form, which takes a real engine; and that of another model."""


@frozen
class Block:
    line: int
    """1-based, of the page."""
    file: str | None
    """What the bold line above the block says."""
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [
        Block(page.count("\n", 0, found.start()) + 1, found["file"], found["language"], found["text"])
        for found in _BLOCK.finditer(page)
    ]


def commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """Yield each command of a console block with what it prints."""
    for told in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, printed = told.partition("\n")
        yield shlex.split(command), printed


def as_told(told: str, printed: str) -> bool:
    """Compare word for word; `…` stands for anything on its line, on a line of its own for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in told.rstrip("\n").split("\n")
    )
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None


def run(folder: Path, command: list[str]) -> str:
    """Run a command in this process, and return all that a terminal would show."""
    assert command[0] == "fafo"
    done = CliRunner().invoke(cli, ["-C", str(folder), *command[1:]], standalone_mode=False)
    if isinstance(done.exception, FafoError):
        return done.output + done.exception.render()
    if done.exception:
        raise done.exception
    return done.output


@pytest.fixture
def quick_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model's files are read, and made ready, once."""
    load, ready = cache(model_files.load_model), compile_module.ready
    made: dict[tuple[int, str], compile_module.ReadyModel] = {}

    def ready_once(loaded: LoadedModel, name: str, date: datetime.date | None) -> compile_module.ReadyModel:
        # `load` keeps what it has loaded, so that no other object gets its number.
        key = id(loaded), name
        if key not in made:
            made[key] = ready(loaded, name, date)
        return made[key]

    for module in (model_files, now):
        monkeypatch.setattr(module, "load_model", load)
    monkeypatch.setattr(compile_module, "ready", ready_once)
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("told", "printed", "same"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\nb\n", "a\nc", False),
        ("a 12ab…  x\n", "a 12abcdef…  x\n", True),
        ("a…\n", "b12\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nb\nc\n", False),
        ("a\n…\n", "a\nb\nc\n", True),
        ("a\n…\n", "b\nc\n", False),
    ],
)
def test_what_is_left_out_is_all_that_may_differ(told: str, printed: str, same: bool) -> None:
    assert as_told(told, printed) is same


def test_every_block_is_a_file_or_commands() -> None:
    found = blocks(PAGE)
    assert len(re.findall(r"^```", PAGE, re.MULTILINE)) == 2 * len(found)
    for block in found:
        where = f"docs/classes.md:{block.line}"
        if block.file is None:
            assert block.language == "console", where
            assert list(commands(block)), where
        else:
            assert block.file.endswith(_ENDS[block.language]), where


@pytest.mark.slow
def test_the_page_holds(tmp_path: Path, quick_model: None) -> None:
    for block in blocks(PAGE):
        if block.file is not None:
            path = tmp_path / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
            continue
        for command, told in commands(block):
            printed = run(tmp_path, command)
            if not as_told(told, printed):
                lines = difflib.unified_diff(told.splitlines(), printed.splitlines(), "the page", "fafo")
                pytest.fail(f"docs/classes.md:{block.line}\n" + "\n".join(lines), pytrace=False)
    (tmp_path / WRONG).unlink()
    fafo(tmp_path, "build", "-q")
    names = {path.stem for path in (tmp_path / "classes").glob("*.toml")}.difference(NOT_RUN)
    rows = (tmp_path / "data" / "facts.jsonl").read_text("utf-8").splitlines()
    told = fafo(tmp_path, "run", *(word for name in sorted(names) for word in ("--class", name))).stderr
    assert f"{len(rows) * len(names)} done · 0 failed" in told
