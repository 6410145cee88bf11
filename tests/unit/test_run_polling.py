"""What a service takes of its sources at each look: changes, whole rows, nothing of one that is out."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project as project_of
from bake_kit import prompt_class

from fafo_build.bake.bake import build
from fafo_build.bake.baked import load_baked
from fafo_build.project import declaration
from fafo_run.item import BrokenRow
from fafo_run.run.intake import Intake, Passed, Taken
from fafo_run.run.polling import Polling
from fafo_run.run.state import RunState
from fafo_run.run.view import View, ViewItem, open_view
from fafo_run.sources.change import signature

SOURCES = {
    name: declaration.Source(name, "files", ("id",), path=(f"{name}.jsonl",)) for name in ("rows", "more")
}


class Seen(Intake):
    """Keeps the keys that it is given, and whether each row was whole."""

    def __init__(self) -> None:
        self.passes: list[list[tuple[str, bool]]] = []
        self.taken = Taken()
        self.recorded = False

    def has_outcome(self, item: ViewItem) -> bool:
        return self.recorded

    def take(self, found: Iterable[ViewItem], *, retry: object = None, passed: Passed | None = None) -> None:
        self.passes.append([])
        self.passes[-1] += [(item.row.key, not isinstance(item.row, BrokenRow)) for item in found]


@pytest.fixture
def view(tmp_path: Path) -> View:
    declared = prompt_class(tmp_path, ("user", "Tell: {{ item.text }}"))
    project = project_of(tmp_path, evolve(declared, sources=("rows", "more")))
    project = evolve(project, sources=SOURCES)
    build(project)
    write(tmp_path, "rows", "a", "b")
    write(tmp_path, "more", "c")
    return open_view(project, load_baked(project))


def write(folder: Path, source: str, *keys: str, torn: str = "") -> None:
    lines = "".join(json.dumps({"id": key, "text": key}) + "\n" for key in keys)
    (folder / f"{source}.jsonl").write_text(lines + torn, "utf-8")


@pytest.fixture
def state(view: View) -> RunState:
    return RunState(dict.fromkeys((of.name for of in view.classes), 0))


@pytest.fixture
def polling(view: View, state: RunState, tmp_path: Path) -> Polling:
    # Every look is due at once.
    return Polling(view, tmp_path, state, lambda: False, every=0.0)


def test_a_source_is_read_again_only_when_it_changed(
    polling: Polling, state: RunState, tmp_path: Path
) -> None:
    seen = Seen()
    polling.look(seen)
    assert seen.passes == [[("a", True), ("b", True)], [("c", True)]]
    assert sum(state.totals.values()) == 3
    polling.look(seen)
    assert len(seen.passes) == 2
    write(tmp_path, "more", "c", "d")
    polling.look(seen)
    assert seen.passes[2:] == [[("c", True), ("d", True)]]
    assert sum(state.totals.values()) == 4


def test_a_row_that_is_half_written_is_no_broken_row(polling: Polling, tmp_path: Path) -> None:
    write(tmp_path, "rows", "a", torn='{"id": "b", "te')
    seen = Seen()
    polling.look(seen)
    write(tmp_path, "rows", "a", "b")
    polling.look(seen)
    polling.look(seen)
    assert [key for keys in seen.passes for key, _ in keys] == ["a", "c", "a", "b"]


def test_a_row_that_stays_broken_is_one(polling: Polling, tmp_path: Path) -> None:
    write(tmp_path, "rows", "a", torn='{"id": "b", "te\n')
    seen = Seen()
    for _ in range(4):
        polling.look(seen)
    first, _, second, *others = seen.passes
    assert [whole for _, whole in first] == [True]
    assert [whole for _, whole in second] == [True, False]
    assert others == [], "it is settled, and the file has not changed"


def test_a_broken_row_that_is_recorded_is_counted_at_the_first_look(polling: Polling, tmp_path: Path) -> None:
    write(tmp_path, "rows", "a", torn='{"id": "b", "te\n')
    seen = Seen()
    seen.recorded = True
    polling.look(seen)
    polling.look(seen)
    first, _, *others = seen.passes
    assert [whole for _, whole in first] == [True, False]
    assert others == [], "an earlier run has recorded it, and the file has not changed"


def test_a_source_that_is_out_is_told_once_and_holds_up_no_other(
    polling: Polling, state: RunState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fafo_run.run.backoff.FIRST", 0.0)
    (tmp_path / "rows.jsonl").rename(tmp_path / "away")
    seen = Seen()
    polling.look(seen)
    assert seen.passes == [[("c", True)]]
    assert "rows.jsonl isn't there" in state.snapshot(0).notice
    assert len(list(state.said())) == 1
    (tmp_path / "away").rename(tmp_path / "rows.jsonl")
    polling._feeds[0].due = 0.0
    polling.look(seen)
    assert seen.passes[1:] == [[("a", True), ("b", True)]]
    assert state.snapshot(0).notice == ""
    assert list(state.said()) == []


def test_a_glob_that_matches_nothing_yet_is_told_once_and_taken_when_it_does(
    view: View, state: RunState, tmp_path: Path
) -> None:
    rows = evolve(SOURCES["rows"], path=("rows.jsonl", "later/*.jsonl"))
    classes = tuple(evolve(of, sources=(rows,)) for of in view.classes)
    project = evolve(view.project, sources={"rows": rows})
    polling = Polling(
        evolve(view, project=project, classes=classes), tmp_path, state, lambda: False, every=0.0
    )
    seen = Seen()
    polling.look(seen)
    write(tmp_path, "rows", "a", "b", "c")
    polling.look(seen)
    assert list(state.said()) == ["source rows: no file matches later/*.jsonl"]
    (tmp_path / "later").mkdir()
    write(tmp_path / "later", "new", "d")
    polling.look(seen)
    assert [key for key, _ in seen.passes[-1]] == ["a", "b", "c", "d"]
    assert list(state.said()) == []


def test_a_contradiction_takes_nothing_of_its_source(
    polling: Polling, state: RunState, tmp_path: Path
) -> None:
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"id": "a", "text": "another"}\n')
    seen = Seen()
    polling.look(seen)
    assert seen.passes == [[("c", True)]]
    assert 'two rows have the key "a"' in state.snapshot(0).notice


def test_waits_get_longer_and_the_pause_is_that_of_the_next_look(
    view: View, state: RunState, tmp_path: Path
) -> None:
    polling = Polling(view, tmp_path, state, lambda: False, every=1000.0)
    (tmp_path / "rows.jsonl").unlink()
    polling.look(Seen())
    assert 0 < polling.pause() <= 1.0
    polling._feeds[0].due = 0.0
    polling.look(Seen())
    assert 1.0 < polling.pause() <= 2.0


def test_a_stop_ends_a_look_in_the_middle_of_a_source(view: View, state: RunState, tmp_path: Path) -> None:
    asked = iter([False, False, True] + [True] * 100)
    seen = Seen()
    Polling(view, tmp_path, state, lambda: next(asked), every=0.0).look(seen)
    assert seen.passes == []
    assert state.snapshot(0).notice == ""


def test_a_signature_changes_with_the_files(tmp_path: Path) -> None:
    one = declaration.Source("rows", "files", ("id",), path=("rows*.jsonl",))
    write(tmp_path, "rows", "a")
    first = signature(one, tmp_path)
    assert signature(one, tmp_path) == first
    write(tmp_path, "rows2", "b")
    second = signature(one, tmp_path)
    assert second != first
    os.utime(tmp_path / "rows.jsonl", ns=(1, 1))
    assert signature(one, tmp_path) != second
    assert signature(one, tmp_path / "nowhere") == frozenset()
    odd = evolve(one, path=("x" * 300,))
    assert signature(odd, tmp_path) is None, "it can't even be looked for: reading it says why"
    folder = declaration.Source("set", "dataset", ("id",), path=("set",))
    (tmp_path / "set").mkdir()
    before = signature(folder, tmp_path)
    (tmp_path / "set" / "shard.arrow").write_bytes(b"x")
    assert signature(folder, tmp_path) != before
    with sqlite3.connect(tmp_path / "facts.db"):
        query = declaration.Source("q", "sql", ("id",), url="sqlite:///facts.db", query="select 1 as id")
    assert signature(query, tmp_path) is None
