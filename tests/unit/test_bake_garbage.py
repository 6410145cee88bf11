"""What `fafo build --gc` may drop: nothing that the lock, the history or a run refers to."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import pytest
from bake_kit import project, prompt_class, smollm2, write
from build_kit import content, quick_model

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.bake.canonical import canonical, sha256
from fafo_build.bake.history import history_path
from fafo_build.bake.lock import lock_path
from fafo_build.errors import BakeError, StoreError
from fafo_build.project.declaration import Project

__all__ = ["quick_model"]
OTHER_TOKENIZER = b'{"added_tokens": []}'


def of(root: Path, text: str) -> Project:
    return project(root, prompt_class(root, ("user", f"{text} {{{{ item.text }}}}"), name="child"))


def built(root: Path, *texts: str) -> tuple[Project, list[str]]:
    """Build one class with one text after the other; return the artifacts in that order."""
    projects = []
    hashes = []
    for text in texts:
        made = of(root, text)
        hashes.append(build(made).classes[0].artifact.hash)
        projects.append(made)
    return projects[-1], hashes


def artifacts(made: Project) -> set[str]:
    return {path.stem for path in (made.build_dir / "artifacts").glob("*.json")}


def nobody() -> Collection[str]:
    return ()


def test_the_present_and_the_last_artifact_stay(tmp_path: Path) -> None:
    made, (first, second, third) = built(tmp_path, "One", "Two", "Three")
    size = (made.build_dir / f"artifacts/{first}.json").stat().st_size
    before = content(made.build_dir)
    checked = build(made, check=True, used=nobody)
    assert content(made.build_dir) == before
    report = build(made, used=nobody)
    assert report.garbage == checked.garbage
    assert [(found.file, found.bytes) for found in report.garbage or ()] == [
        (f"artifacts/{first}.json", size)
    ]
    assert artifacts(made) == {second, third}
    load_baked(made)
    assert build(made, used=nobody).garbage == ()


def test_without_a_history_only_the_present_one_stays(tmp_path: Path) -> None:
    made, (first, second) = built(tmp_path, "One", "Two")
    history_path(made.build_dir).unlink()
    build(made, used=nobody)
    assert artifacts(made) == {second}
    assert first != second


def test_what_results_refer_to_stays_with_its_tokenizer(tmp_path: Path) -> None:
    made, (first, _, third) = built(tmp_path, "One", "Two", "Three")
    folder = made.build_dir
    other = sha256(OTHER_TOKENIZER)
    kept = json.loads((folder / f"artifacts/{first}.json").read_bytes())
    kept |= {"tokenizer": other, "format": 99}
    old = sha256(canonical(kept))
    unused = sha256(b"unused")
    write(
        folder,
        {
            f"artifacts/{old}.json": canonical(kept),
            f"tokenizers/{other}.json": OTHER_TOKENIZER,
            f"tokenizers/{unused}.json": b"unused",
            "artifacts/notes.json": "not a build's",
            "artifacts/README": "not a build's",
        },
    )
    report = build(made, used=lambda: {old, "ff" * 32})
    assert {found.file for found in report.garbage or ()} == {
        f"artifacts/{first}.json",
        f"tokenizers/{unused}.json",
    }
    assert {path.name for path in (folder / "tokenizers").iterdir()} == {
        f"{other}.json",
        f"{smollm2().tokenizer}.json",
    }
    assert {"notes", old, third} <= artifacts(made)
    assert (folder / "artifacts/README").exists()


def test_a_class_that_went_leaves_nothing(tmp_path: Path) -> None:
    both = project(
        tmp_path, *of(tmp_path, "One").classes.values(), prompt_class(tmp_path, ("user", "{{ item.x }}"))
    )
    gone = build(both).classes[1].artifact.hash
    one = of(tmp_path, "One")
    assert [found.file for found in build(one, used=nobody).garbage or ()] == [f"artifacts/{gone}.json"]


def test_a_check_counts_what_the_build_would_need(tmp_path: Path) -> None:
    made, (first, second) = built(tmp_path, "One", "Two")
    of(tmp_path, "Three")
    stale = of(tmp_path, "Three")
    report = build(stale, check=True, used=nobody)
    assert not report.is_current
    assert [found.file for found in report.garbage or ()] == [f"artifacts/{first}.json"]
    assert artifacts(made) == {first, second}
    build(stale, used=nobody)
    assert first not in artifacts(made)
    assert second in artifacts(made)


def test_on_any_doubt_nothing_is_dropped(tmp_path: Path) -> None:
    made, (first, second, third) = built(tmp_path, "One", "Two", "Three")

    def doubt() -> Collection[str]:
        raise StoreError.of("a run is in progress")

    with pytest.raises(StoreError):
        build(made, used=doubt)
    assert artifacts(made) == {first, second, third}
    write(made.build_dir, {f"artifacts/{first}.json": "damaged"})
    with pytest.raises(BakeError, match="the file is damaged"):
        build(made, used=lambda: {first})
    strange = canonical({"format": 7})
    write(made.build_dir, {f"artifacts/{sha256(strange)}.json": strange})
    with pytest.raises(BakeError, match="doesn't say which tokenizer it needs; nothing was dropped"):
        build(made, used=lambda: {sha256(strange)})
    assert artifacts(made) == {first, second, third, sha256(strange)}


def test_the_build_comes_first(tmp_path: Path) -> None:
    """What a stale class is baked to is in the lock before anything is dropped."""
    made, (first, second) = built(tmp_path, "One", "Two")
    stale = of(tmp_path, "Three")
    seen = []

    def look() -> Collection[str]:
        seen.append(lock_path(made.build_dir).read_text())
        return ()

    report = build(stale, used=look)
    assert report.classes[0].artifact.hash in seen[0]
    assert artifacts(made) == {second, report.classes[0].artifact.hash}
    assert first not in artifacts(made)
