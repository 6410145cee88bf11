"""`build/fafo.lock`: a golden copy, what it lists, and what becomes of an older, a newer, a damaged one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project, prompt_class, smollm2, write
from build_kit import change_prompt, child, content, exam, quick_model, reasons, small

from fafo_build.bake import artifact as artifact_module
from fafo_build.bake import bake as bake_module
from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.bake.canonical import canonical, sha256
from fafo_build.bake.lock import FORMAT, OutdatedLock, encode_lock, find_lock, lock_path, read_lock
from fafo_build.bake.plan import plan_build
from fafo_build.bake.store import OtherFormatError
from fafo_build.errors import BakeError
from fafo_build.project.declaration import Message

REPO = Path(__file__).parents[2]
GOLDEN = REPO / "tests/golden/bake"
VERSIONS = {"fafo": "0.1.0", "jinja2": "3.1.6", "tokenizers": "0.23.3", "transformers": "5.24.0"}
NEWER = FORMAT + 1
MADE = artifact_module.FORMAT
__all__ = ["quick_model"]


def test_the_golden_lock_and_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bake_module, "library_versions", lambda: VERSIONS)
    made = small(tmp_path)
    report = build(made)
    assert not report.is_current
    assert [(found.plan.name, found.plan.state, found.changed) for found in report.classes] == [
        ("child", "new", True),
        ("exam", "new", True),
    ]
    built = content(made.build_dir)
    expected = {"fafo.lock": (GOLDEN / "fafo.lock").read_bytes()}
    for name in ("child", "exam"):
        golden = (GOLDEN / f"{name}.json").read_bytes()
        expected[f"artifacts/{sha256(golden)}.json"] = golden
    tokenizer = f"tokenizers/{smollm2().tokenizer}.json"
    assert built == {**expected, tokenizer: smollm2().tokenizer_json}


@pytest.mark.parametrize(
    ("text", "why", "cure"),
    [
        (
            f"format = {NEWER}",
            f"the lock is of format {NEWER}, this version of fafo reads up to",
            "use a newer",
        ),
        (
            f"format = {FORMAT}\nartifact_format = {MADE + 1}",
            "its artifacts are of format",
            "use a newer fafo",
        ),
        ("x = 1", "the lock is damaged: it doesn't say its format", "take it from git"),
        ("format = true", "the lock is damaged: it doesn't say its format", "take it from git"),
        ('format = "1"', "the lock is damaged: it doesn't say its format", "take it from git"),
        ("<<<<<<< HEAD", "the lock is damaged", "take it from git"),
        ("\xff", "the lock is damaged", "take it from git"),
    ],
)
def test_a_lock_that_cannot_be_read(tmp_path: Path, text: str, why: str, cure: str) -> None:
    made = project(tmp_path, child(tmp_path))
    write(tmp_path, {"build/fafo.lock": text.encode("latin-1")})
    for call in (plan_build, load_baked, build):
        with pytest.raises(BakeError, match=why) as caught:
            call(made)
        assert caught.value.problems[0].file == "build/fafo.lock"
        assert (caught.value.problems[0].cure or "").startswith(cure)
    assert lock_path(made.build_dir).read_bytes() == text.encode("latin-1")


def older(lock: str) -> str:
    """The golden lock of format 1 names other artifacts than the project has now: its own are put in."""
    first = (GOLDEN / "fafo-format-1.lock").read_text()
    for name in ("child", "exam"):
        pattern = rf'(\[classes.{name}\]\nmodel = "default"\nartifact = ")[0-9a-f]*'
        found = re.search(pattern, lock)
        assert found
        first = re.sub(pattern, found[0], first)
    return first


def without(lock: str) -> str:
    return re.sub(r"tail_tokens = .*\n", "", lock, count=1)


def with_more(lock: str) -> str:
    return lock.replace("slots = 1\n", "slots = 1\nflavour = 3\n", 1)


def with_text(lock: str) -> str:
    return lock.replace("slots = 1\n", 'slots = "1"\n', 1)


def of_older_artifacts(lock: str) -> str:
    return lock.replace(f"artifact_format = {MADE}", "artifact_format = 0")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (older, f"the lock is of format 1, this version of fafo writes {FORMAT}"),
        (
            without,
            "the lock isn't as this version of fafo writes it: "
            "required field missing @ lock.classes['child'].tail_tokens",
        ),
        (
            with_more,
            "the lock isn't as this version of fafo writes it: "
            "extra fields found (flavour) @ lock.classes['child']",
        ),
        (
            with_text,
            "the lock isn't as this version of fafo writes it: "
            "invalid value for type, expected int @ lock.classes['child'].slots",
        ),
        (of_older_artifacts, f"its artifact is of format 0, this version of fafo writes {MADE}"),
    ],
)
def test_an_outdated_lock_makes_all_stale_and_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], why: str
) -> None:
    made = small(tmp_path)
    build(made)
    path = lock_path(made.build_dir)
    before = path.read_text()
    path.write_text(change(before))
    assert isinstance(find_lock(made.build_dir), OutdatedLock)
    assert reasons(made) == {"child": ("stale", (why,)), "exam": ("stale", (why,))}
    with pytest.raises(BakeError) as caught:
        load_baked(made)
    (problem,) = caught.value.problems
    assert (problem.message, problem.file, problem.cure) == (why, "build/fafo.lock", "run `fafo build`")
    assert not build(made, check=True).is_current
    assert path.read_text() == change(before)
    report = build(made)
    assert [found.changed for found in report.classes] == [False, False], "the same artifacts, a new lock"
    assert path.read_text() == before
    assert build(made).is_current


def test_a_class_that_went_shows_in_an_outdated_lock_too(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    path = lock_path(made.build_dir)
    path.write_text(older(path.read_text()))
    assert plan_build(project(tmp_path, exam(tmp_path))).gone == ("child",)


def test_a_new_form_of_artifacts_bakes_all_again_and_keeps_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(tmp_path)
    build(made)
    before = content(made.build_dir)
    monkeypatch.setattr(artifact_module, "FORMAT", MADE + 1)
    why = f"its artifact is of format {MADE}, this version of fafo writes {MADE + 1}"
    assert reasons(made) == {"child": ("stale", (why,)), "exam": ("stale", (why,))}
    with pytest.raises(BakeError, match="its artifact is of format"):
        load_baked(made)
    report = build(made)
    assert [found.changed for found in report.classes] == [True, True]
    assert set(before) < set(content(made.build_dir)), "old artifacts stay"
    assert build(made).is_current
    load_baked(made)
    monkeypatch.undo()
    with pytest.raises(BakeError, match=f"its artifacts are of format {MADE + 1}") as caught:
        plan_build(made)
    assert (caught.value.problems[0].cure or "").startswith("use a newer fafo")


def test_the_documentation_says_the_present_formats() -> None:
    said = (REPO / "docs/baking.md").read_text("utf-8")
    assert f"| `format` {FORMAT:d}, `artifact_format` {MADE} | read whole" in said
    assert f"\n| {FORMAT:d} | also" in said


def test_the_lock_comes_back_as_it_was(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    lock = read_lock(made.build_dir)
    assert lock is not None
    assert encode_lock(lock) == lock_path(made.build_dir).read_bytes()
    assert str(tmp_path) not in lock_path(made.build_dir).read_text()


def test_the_lock_is_what_the_sources_give_whatever_they_gave_before(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    before = lock_path(made.build_dir).read_bytes()
    change_prompt(tmp_path)
    build(made)
    assert lock_path(made.build_dir).read_bytes() != before
    change_prompt(tmp_path, "Be brief.")
    build(made)
    assert lock_path(made.build_dir).read_bytes() == before


def test_an_unchanged_project_is_planned_without_parsing_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(tmp_path)
    build(made)

    def never(*_: object) -> None:
        raise AssertionError("nothing has changed")

    monkeypatch.setattr("fafo_build.render.sources.gather", never)
    assert plan_build(made).is_current


def test_another_prompts_folder_makes_all_stale(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    (tmp_path / "texts").symlink_to(tmp_path / "prompts")
    moved = evolve(made, prompts_dir=tmp_path / "texts")
    assert reasons(moved) == {
        "child": ("stale", ("the prompts folder was prompts, and is texts",)),
        "exam": (
            "stale",
            (
                "prompts/common.md is no longer used",
                "prompts/system.md is no longer used",
                "texts/common.md is new",
                "texts/system.md is new",
                "the prompts folder was prompts, and is texts",
            ),
        ),
    }
    assert [found.changed for found in build(moved).classes] == [False, False]


def test_an_artifact_of_another_format(tmp_path: Path) -> None:
    made = project(tmp_path, child(tmp_path))
    artifact = build(made).classes[0].artifact
    newer = canonical({**json.loads(artifact.encoded), "format": MADE + 1})
    lock = lock_path(made.build_dir)
    write(tmp_path, {f"build/artifacts/{sha256(newer)}.json": newer})
    lock.write_text(lock.read_text().replace(artifact.hash, sha256(newer)))
    with pytest.raises(OtherFormatError, match=f"another version of fafo: artifact format {MADE + 1}"):
        load_baked(made)


AUDIT = """
import json, sys
from pathlib import Path
from fafo_build.bake.bake import build
from fafo_build.project.load import load_project
root, opened = Path(sys.argv[1]), set()
project = load_project(root)
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(root)):
        opened.add(str(Path(arguments[0]).relative_to(root)))
sys.addaudithook(note)
build(project)
print(json.dumps(sorted(opened)))
"""


def test_every_file_that_a_build_reads_is_in_the_lock(tmp_path: Path) -> None:
    smollm2().loaded.tokenizer.save_pretrained(tmp_path / "model")
    write(
        tmp_path,
        {
            "fafo.toml": """
                [project]
                name = "audited"
                [model]
                path = "model"
                chat_template = "chat.jinja"
                [engine]
                kind = "fake"
                [[source]]
                name = "rows"
                type = "files"
                path = "rows.jsonl"
                key = "id"
            """,
            "chat.jinja": smollm2().loaded.chat_template,
            "model/config.json": json.dumps(dict(smollm2().loaded.config)),
            "model/README.md": "nobody reads it",
            "prompts/base.md": "{% block a %}{% endblock %}{% include 'deep/one.md' %}",
            "prompts/page.md": "{% extends 'base.md' %}{% from 'macros.md' import hi %}"
            "{% block a %}A{% endblock %}",
            "prompts/macros.md": "{% macro hi() %}{% include 'deep/two.md' %}{% endmacro %}",
            "prompts/deep/one.md": "One.",
            "prompts/deep/two.md": "Two.",
            "prompts/unused.md": "nobody reads it",
        },
    )
    declared = prompt_class(
        tmp_path,
        Message("system", prompt="page.md"),
        ("user", "{{ examples[0].q }} {{ item.text }}"),
        examples=['{"q": "What?"}'],
    )
    with (tmp_path / declared.file).open("a") as file:
        file.write('\n[examples]\npath = "examples.jsonl"\n')
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(tmp_path)], capture_output=True, text=True, check=False, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    looked = (file for file in json.loads(done.stdout) if not file.startswith("build"))
    opened = {file for file in looked if (tmp_path / file).is_file()}
    lock = read_lock(tmp_path / "build")
    assert lock is not None
    listed = {*lock.classes["exam"].inputs, *lock.models["default"].inputs}
    assert opened <= listed
    assert listed >= {
        "chat.jinja",
        "classes/exam.toml",
        "examples.jsonl",
        "model/config.json",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        *(f"prompts/{name}.md" for name in ("base", "page", "macros", "deep/one", "deep/two")),
    }
    assert not [file for file in listed if "README" in file or "unused" in file]
