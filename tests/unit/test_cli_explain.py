"""`fafo build --explain`: what it prints, in colour and without, and that it writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from bake_kit import loaded
from click.testing import CliRunner

from fafo_build.bake import now
from fafo_build.errors import DeclarationError, TemplateError
from fafo_build.tokens import model_files
from fafo_run.cli import cli
from tests.helpers import CLASS, write_project

COLOUR = re.compile(r"\x1b\[")


def fafo(folder: Path, *arguments: str) -> str:
    """Run a command in this process and return what it says on stdout; its errors are raised."""
    done = CliRunner().invoke(cli, ["-C", str(folder), *arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.stdout


def explained(folder: Path, name: str = "ask") -> Any:
    return json.loads(fafo(folder, "build", "--explain", name, "--json"))


@pytest.fixture(autouse=True, scope="module")
def quick_model() -> Iterator[None]:
    """The model's files are read once for all these tests."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (model_files, now):
            patch.setattr(module, "load_model", lambda model, root: loaded())
        yield


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def project(quick_model: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_project(tmp_path_factory.mktemp("explain"))
    fafo(folder, "build")
    return folder


def test_markers_where_no_terminal_is(project: Path) -> None:
    told = fafo(project, "build", "--explain", "ask")
    assert not COLOUR.search(told)
    title, _, shown = told.partition("\n\n")
    assert re.fullmatch("ask · [0-9a-f]{8}… · as built", title)
    begin = "⟦prefix 37⟧<|im_start|>system\nYou write questions in a plain tone.\nEvery question has exactly"
    assert shown.startswith(begin)
    end = (
        "Fact⟦glue 1⟧ ⟦hole⟧{{ item.id }}⟦constant 2⟧: ⟦hole⟧{{ item.text }}"
        "⟦constant 7⟧\nAsk one question about it.⟦tail 6⟧<|im_end|>\n<|im_start|>assistant\n\n"
    )
    assert end in shown
    assert shown.partition("assistant\n\n")[2] == (
        "\n"
        "prefix    37 tokens, ends after the piece “Fact”, which no text that follows can change; "
        "that costs 1 token: “ ” goes with each item\n"
        "hole      message 2: {{ item.id }}\n"
        "hole      message 2: {{ item.text }}\n"
        "constant  10 tokens between prefix and tail, computed for each item\n"
        "tail      6 tokens\n"
        "\n"
        "what would lengthen the prefix, or let classes share more of it\n"
        "      9  constant tokens follow {{ item.id }} in message 2: put the hole after them\n"
        "         “: … Ask one question about it.”\n"
    )


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        ({"FORCE_COLOR": "1", "TERM": "xterm-256color"}, True),
        ({"FORCE_COLOR": "1", "TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colours_on_a_terminal_that_has_them_unless_none_are_wanted(
    project: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], coloured: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    told = fafo(project, "build", "--explain", "ask")
    assert bool(COLOUR.search(told)) == coloured
    assert ("⟦prefix 37⟧" in told) != coloured


def test_json(project: Path) -> None:
    told = explained(project)
    parts, advice = told.pop("parts"), told.pop("advice")
    assert len(told.pop("artifact")) == 64
    assert told == {
        "class": "ask",
        "state": "current",
        "prefix_tokens": 37,
        "boundary": {"reason": "piece", "last": "Fact", "glue": " ", "glue_tokens": 1},
        "not_compared": [],
    }
    assert [part["kind"] for part in parts] == ["prefix", "glue", "hole", "late", "hole", "late", "tail"]
    assert parts[3] == {"kind": "late", "text": ": ", "tokens": 2, "message": 2}
    assert advice == [
        {
            "kind": "text",
            "tokens": 9,
            "text": ": … Ask one question about it.",
            "message": 2,
            "hole": "{{ item.id }}",
            "messages": [],
            "classes": [],
            "prompts": [],
        }
    ]


def test_a_stale_class_is_baked_in_memory_and_nothing_is_written(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    told = fafo(folder, "build", "--explain", "ask")
    assert "· new, baked in memory\n" in told and "⟦prefix 37⟧" in told
    assert not (folder / "build").exists()
    fafo(folder, "build")
    before = {path: path.stat().st_mtime_ns for path in (folder / "build").rglob("*")}
    rules = folder / "prompts" / "rules.md"
    rules.write_text("Be brief.\n" + rules.read_text())
    again = explained(folder)
    assert again["state"] == "stale"
    assert "Be brief.\n" in again["parts"][0]["text"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "build").rglob("*")} == before


def test_a_fragment_of_other_classes_as_they_were_built(tmp_path: Path) -> None:
    other = CLASS.replace('prompt = "rules.md"', "content = \"Hello.\\n{% include 'rules.md' %}\"")
    folder = write_project(tmp_path, classes={"ask": CLASS, "other": other})
    rules = folder / "prompts" / "rules.md"
    rules.write_text(" ".join(f"Rule {at} is as good as rule {at + 1}." for at in range(9)))
    assert "not compared, since they aren't built: other" in fafo(folder, "build", "--explain", "ask")
    fafo(folder, "build")
    (advice,) = (found for found in explained(folder)["advice"] if found["kind"] == "fragment")
    assert advice["classes"] == ["other"] and advice["prompts"] == ["prompts/rules.md"]
    told = fafo(folder, "build", "--explain", "ask")
    assert f"{advice['tokens']}  tokens are also in other (prompts/rules.md): put first" in told


def test_a_mistake_in_another_class_is_no_concern(tmp_path: Path) -> None:
    broken = CLASS.replace("{{ item.text }}", "{{ itm.text }}")
    folder = write_project(tmp_path, classes={"ask": CLASS, "broken": broken})
    assert explained(folder)["not_compared"] == ["broken"]
    with pytest.raises(TemplateError, match="'itm' is undefined"):
        explained(folder, "broken")


def test_an_unknown_class(project: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        explained(project, "aks")
    assert caught.value.render() == 'no class named "aks" is declared\n  cure: did you mean ask?'


def test_check_asks_something_else(project: Path) -> None:
    with pytest.raises(click.UsageError, match="builds nothing"):
        fafo(project, "build", "--explain", "ask", "--check")


def test_no_prompt_commands_the_terminal(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    (folder / "prompts" / "rules.md").write_text("Red: \x1b[31m and \x7f and \x9b31m.")
    assert r"Red: \x1b[31m and \x7f and \x9b31m." in fafo(folder, "build", "--explain", "ask")
