"""`fafo build --gc` and `fafo diff` through the front door, beside a run's results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import RULES, fafo, fafo_json, write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, 3)


def edit(folder: Path, line: str) -> None:
    (folder / "prompts/rules.md").write_text(RULES + line + "\n", "utf-8")


def artifact(folder: Path, *arguments: str) -> str:
    told = fafo_json(folder, "build", *arguments)
    return str(told["classes"]["ask"]["artifact"])


def there(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "build/artifacts").iterdir()}


@pytest.mark.slow
def test_an_edit_is_shown_built_and_its_leavings_dropped(project: Path) -> None:
    first = artifact(project)
    fafo(project, "run")
    edit(project, "Second.")
    told = fafo_json(project, "diff", "ask")
    assert (told["old"]["from"], told["new"]["from"], told["old"]["artifact"]) == ("build", "sources", first)
    assert told["kept_tokens"] + told["new_tokens"] == told["new"]["prefix_tokens"]
    second = artifact(project)
    assert told["new"]["artifact"] == second
    shown = fafo(project, "diff", "ask", first[:10])
    assert "+Second.<|im_end|>" in shown.stdout
    assert "\x1b" not in shown.stdout, "colours are for terminals"
    edit(project, "Third.")
    third = artifact(project)
    edit(project, "Fourth.")
    checked = fafo(project, "build", "--check", "--gc", check=1)
    assert "to drop: 1 file that nothing uses" in checked.stderr
    assert f"artifacts/{second[:8]}…" in checked.stderr
    fourth = artifact(project)
    assert there(project) == {first, second, third, fourth}
    dropped = fafo_json(project, "build", "--gc")["garbage"]
    assert [found["file"] for found in dropped] == [f"artifacts/{second}.json"]
    assert there(project) == {first, third, fourth}, "the results are of the first"
    assert fafo_json(project, "build")["garbage"] is None
    assert "nothing to drop" in fafo(project, "build", "--gc").stderr
    key = fafo_json(project, "show", "0")
    assert key is not None


def test_a_damaged_segment_is_a_doubt(project: Path) -> None:
    artifact(project)
    edit(project, "Second.")
    artifact(project)
    segment = project / "runs/main/results/00000001.seg"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"x" * 5000)
    before = there(project)
    done = fafo(project, "build", "--gc", check=1)
    assert "nothing was dropped" in done.stderr
    assert "00000001.seg" in done.stderr
    assert there(project) == before
