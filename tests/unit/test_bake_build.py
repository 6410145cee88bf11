"""`fafo build` as a value and as files: what is stale and why, what is written, and what a run reads back."""

from __future__ import annotations

import datetime
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import SMOLLM2, project, prompt_class, smollm2, write
from build_kit import change_prompt, child, exam, quick_model, reasons, small

from fafo_build.bake import bake as bake_module
from fafo_build.bake import plan as plan_module
from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.bake.lock import lock_path, read_lock
from fafo_build.bake.plan import plan_build
from fafo_build.bake.store import artifact_path, tokenizer_path
from fafo_build.errors import BakeError, TemplateError
from fafo_build.project.declaration import Message, Model
from fafo_build.tokens import model_files

REPO = Path(__file__).parents[2]
__all__ = ["quick_model"]
GOLDEN = REPO / "tests/golden/bake"


def test_a_second_build_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small(tmp_path)
    first = build(made)
    before = lock_path(made.build_dir).stat().st_mtime_ns

    def never(*_: object) -> None:
        raise AssertionError("an unchanged project needs no model")

    monkeypatch.setattr(model_files, "load_model", never)
    second = build(made)
    assert second.is_current
    assert plan_build(made).is_current
    assert [found.artifact for found in second.classes] == [found.artifact for found in first.classes]
    assert lock_path(made.build_dir).stat().st_mtime_ns == before
    assert build(made, check=True).is_current


def test_what_is_baked_is_what_the_lock_names_though_a_prompt_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(tmp_path)
    build(made)
    change_prompt(tmp_path, "One.")

    def slow(*_: object) -> None:
        change_prompt(tmp_path, "Two.")

    monkeypatch.setattr(model_files, "load_model", slow)
    build(made)
    assert load_baked(made).classes["exam"].artifact.spans[0].text.startswith("<|im_start|>system\nOne.")
    assert reasons(made)["exam"] == ("stale", ("prompts/common.md changed",))


def change_class(root: Path) -> None:
    exam(root, comment="another comment")


def change_examples(root: Path) -> None:
    write(root, {"examples.jsonl": '{"q": "Why?"}\n'})


@pytest.mark.parametrize(
    ("change", "why", "new_artifact"),
    [
        (change_prompt, "prompts/common.md changed", True),
        (change_class, "classes/exam.toml changed", False),
        (change_examples, "examples.jsonl changed", True),
    ],
)
def test_each_changed_input_is_named(
    tmp_path: Path, change: Callable[[Path], None], why: str, new_artifact: bool
) -> None:
    made = small(tmp_path)
    build(made)
    before = {path: path.read_bytes() for path in made.build_dir.rglob("*") if path.is_file()}
    change(tmp_path)
    assert reasons(made) == {"child": ("current", ()), "exam": ("stale", (why,))}
    checked = build(made, check=True)
    assert not checked.is_current
    assert [found.changed for found in checked.classes] == [False, new_artifact]
    assert before == {path: path.read_bytes() for path in made.build_dir.rglob("*") if path.is_file()}
    build(made)
    assert plan_build(made).is_current
    assert set(before) - {lock_path(made.build_dir)} <= set(made.build_dir.rglob("*")), "old artifacts stay"


def test_a_prompt_that_is_no_longer_used(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    write(tmp_path, {"prompts/system.md": "{% include 'other.md' %}", "prompts/other.md": "x"})
    assert reasons(made)["exam"][1] == (
        "prompts/common.md is no longer used",
        "prompts/other.md is new",
        "prompts/system.md changed",
    )


def test_a_class_that_came_and_one_that_went(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    only = project(tmp_path, exam(tmp_path), prompt_class(tmp_path, ("user", "{{ item.x }}"), name="third"))
    plan = plan_build(only)
    assert plan.gone == ("child",)
    assert [(found.name, found.state) for found in plan.classes] == [("exam", "current"), ("third", "new")]
    assert not build(only, check=True).is_current
    build(only)
    lock = read_lock(only.build_dir)
    assert lock is not None
    assert sorted(lock.classes) == ["exam", "third"]
    assert len(list((only.build_dir / "artifacts").iterdir())) == 3, "old artifacts stay"


def test_only_a_class_that_went_is_a_change_too(tmp_path: Path) -> None:
    made = small(tmp_path)
    build(made)
    fewer = project(tmp_path, exam(tmp_path))
    assert not build(fewer).is_current
    assert build(fewer).is_current


@pytest.mark.parametrize("which", ["artifact", "tokenizer"])
@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_lost_and_damaged_files_are_made_again(tmp_path: Path, which: str, harm: str) -> None:
    made = project(tmp_path, child(tmp_path))
    artifact = build(made).classes[0].artifact
    path = (
        artifact_path(made.build_dir, artifact.hash)
        if which == "artifact"
        else tokenizer_path(made.build_dir, artifact.tokenizer)
    )
    before = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(before[:-1] + b" ")
    with pytest.raises(BakeError, match="missing" if harm == "gone" else "damaged") as caught:
        load_baked(made)
    assert caught.value.problems[0].cure == "run `fafo build`"
    assert caught.value.problems[0].file == f"build/{which}s/{path.name}"
    state, why = reasons(made)["child"]
    assert state == "stale"
    assert "is missing or damaged" in why[0]
    build(made)
    assert path.read_bytes() == before
    load_baked(made)


def test_another_version_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(tmp_path, child(tmp_path))
    build(made)
    now = plan_module.library_versions()
    monkeypatch.setattr(plan_module, "library_versions", lambda: {**now, "tokenizers": "9.9"})
    assert reasons(made)["child"] == ("stale", (f"tokenizers was {now['tokenizers']}, and is 9.9",))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (evolve(SMOLLM2, revision="v2"), "model default: revision was None, and is v2"),
        (evolve(SMOLLM2, date=datetime.date(2026, 1, 31)), "model default: date was None, and is 2026-01-31"),
        (evolve(SMOLLM2, chat_template="chat.jinja"), "chat.jinja is new"),
    ],
)
def test_another_model(tmp_path: Path, model: Model, why: str) -> None:
    write(tmp_path, {"chat.jinja": "x"})
    build(project(tmp_path, child(tmp_path)))
    assert reasons(project(tmp_path, child(tmp_path), model=model))["child"] == ("stale", (why,))


def test_other_model_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(tmp_path, child(tmp_path))
    build(made)
    (name,) = smollm2().loaded.inputs
    monkeypatch.setattr(plan_module, "input_hashes", lambda model, root: {name: "00"})
    assert reasons(made)["child"] == ("stale", (f"{name} changed",))


def test_what_a_run_reads(tmp_path: Path) -> None:
    made = small(tmp_path)
    report = build(made)
    baked = load_baked(made)
    assert list(baked.classes) == ["child", "exam"]
    assert baked.classes["exam"].artifact == report.classes[1].artifact
    model = baked.classes["exam"].model
    assert (model.locked.context_length, model.locked.vocab_size, model.locked.eos_ids) == (8192, 49152, (2,))
    assert model.tokenizer_json == smollm2().tokenizer_json
    assert baked.classes["child"].model.encoder is model.encoder


def test_a_run_before_a_build(tmp_path: Path) -> None:
    made = project(tmp_path, child(tmp_path))
    with pytest.raises(BakeError, match="isn't built yet") as caught:
        load_baked(made)
    assert caught.value.problems[0].cure == "run `fafo build`"
    build(made)
    more = project(tmp_path, child(tmp_path), prompt_class(tmp_path, ("user", "{{ item.x }}")))
    with pytest.raises(BakeError, match="this class isn't built yet") as caught:
        load_baked(more)
    assert caught.value.problems[0].field == "class.exam"


def test_problems_of_all_classes_come_together_and_nothing_is_written(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        prompt_class(tmp_path, ("user", "{{ item.x "), name="a"),
        prompt_class(tmp_path, ("user", "{{ item.x }"), name="b"),
    )
    with pytest.raises(TemplateError) as caught:
        build(made)
    assert [problem.file for problem in caught.value.problems] == ["classes/a.toml", "classes/b.toml"]
    baking = project(
        tmp_path,
        prompt_class(tmp_path, ("user", "{{ one }}"), name="a"),
        prompt_class(tmp_path, ("user", "{{ two }}"), name="b"),
        child(tmp_path),
    )
    with pytest.raises(TemplateError) as caught:
        build(baking)
    assert len(caught.value.problems) == 2
    assert not lock_path(made.build_dir).exists()
    assert not (made.build_dir / "artifacts").exists()


def test_problems_of_two_kinds_come_together(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        prompt_class(tmp_path, ("user", "constant"), name="a"),
        prompt_class(tmp_path, ("user", "{{ item.x }}{{ '<|im_end|>' }}"), name="b"),
    )
    with pytest.raises(BakeError) as caught:
        build(made)
    assert [problem.message for problem in caught.value.problems] == [
        "no message looks at the item, so every row would ask the same",
        "the special token <|im_end|> stands as mere text in a message that looks at the item",
    ]


def test_a_full_disk_leaves_the_old_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small(tmp_path)
    build(made)
    change_prompt(tmp_path)
    before = {path: path.read_bytes() for path in made.build_dir.rglob("*") if path.is_file()}
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BakeError, match="can't be written: No space left on device"):
        build(made)
    assert calls
    monkeypatch.setattr(os, "fsync", real)
    assert before == {path: path.read_bytes() for path in made.build_dir.rglob("*") if path.is_file()}
    build(made)
    assert plan_build(made).is_current


def test_everything_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small(tmp_path)
    synced: set[Path] = set()
    named: list[Path] = []
    sync, replace = os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    def checked(self: Path, target: Path) -> Path:
        assert self in synced, "a name for what isn't durable"
        synced.discard(target.parent)
        if target == lock_path(made.build_dir):
            assert {path.parent for path in named} <= synced, "the lock names what may not be there"
        named.append(target)
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", checked)
    build(made)
    assert len(named) == 4, "two artifacts, a tokenizer and the lock"
    assert {path.parent for path in named} <= synced


def test_a_crash_before_the_lock_leaves_the_old_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(tmp_path)
    build(made)
    before = lock_path(made.build_dir).read_bytes()
    change_prompt(tmp_path)

    def crash(_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bake_module, "encode_lock", crash)
        with pytest.raises(KeyboardInterrupt):
            build(made)
    assert lock_path(made.build_dir).read_bytes() == before
    load_baked(made)
    build(made)
    assert plan_build(made).is_current


def test_a_build_folder_that_is_a_file(tmp_path: Path) -> None:
    made = project(tmp_path, child(tmp_path))
    write(tmp_path, {"build": "in the way"})
    with pytest.raises(BakeError) as caught:
        build(made)
    assert caught.value.problems[0].file in ("build", "build/fafo.lock")


def test_builds_at_once_take_turns(tmp_path: Path) -> None:
    made = project(tmp_path, child(tmp_path))
    reports, threads = [], []
    for _ in range(3):
        thread = threading.Thread(target=lambda: reports.append(build(made)))
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.is_current for report in reports) == [False, True, True]


def test_mistakes_of_several_classes_come_at_once(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        prompt_class(tmp_path, Message("user", prompt="gone.md"), name="a"),
        prompt_class(tmp_path, ("user", "{{ nope }}"), name="b"),
    )
    with pytest.raises(TemplateError) as caught:
        plan_build(made)
    assert [problem.message for problem in caught.value.problems] == [
        'there is no prompt "prompts/gone.md"',
        "'nope' is undefined",
    ]
