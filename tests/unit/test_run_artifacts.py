"""Which artifacts a project's stores refer to, and that on any doubt nobody is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from bake_kit import project

from fafo_build.errors import StoreError
from fafo_build.project.declaration import Project
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import COPY_SIZE, HEADER_SIZE
from fafo_run.queue.queue import Queue
from fafo_run.results.results import Results
from fafo_run.run.artifacts import used_artifacts
from tests.log_nouns import digest, item, provenance, record


def stored(root: Path, run: str = "main") -> Path:
    """Make a store with results of one artifact and a queue of another; return its folder."""
    folder = root / "runs" / run
    with RunDirectory.own(folder) as directory:
        queue, results = Queue(directory), Results(directory)
        queue.append([item(1, provenance(artifact=f"queued {run}"))])
        results.append([record(2, said=provenance(engine="fake", artifact=f"done {run}"))])
        queue.close(clean=True)
        results.close(clean=True)
    return folder


def both(run: str = "main") -> set[str]:
    return {digest(f"queued {run}"), digest(f"done {run}")}


def segment(folder: Path, log: str = "results") -> Path:
    (found,) = (folder / log).glob("*.seg")
    return found


def refused(made: Project, why: str) -> None:
    with pytest.raises(StoreError, match=why) as caught:
        used_artifacts(made)
    assert caught.value.problems[0].message.endswith("nothing was dropped")
    assert caught.value.problems[0].cure


def test_queues_and_results_of_all_runs(tmp_path: Path) -> None:
    made = project(tmp_path)
    assert used_artifacts(made) == set(), "no run yet"
    stored(tmp_path)
    stored(tmp_path, "second")
    (tmp_path / "runs/notes.txt").write_text("no segment")
    assert used_artifacts(made) == both() | both("second")


def test_quarantine_and_what_was_put_elsewhere_count(tmp_path: Path) -> None:
    made = project(tmp_path)
    folder = stored(tmp_path)
    segment(folder).rename(folder / "quarantine/results-00000001.seg-2")
    (tmp_path / "runs/old").mkdir()
    segment(folder, "queue").rename(tmp_path / "runs/old/00000001.seg")
    (folder / "quarantine/results-00000001-4096-8.bin").write_bytes(b"cut")
    assert used_artifacts(made) == both()


def test_a_run_in_progress(tmp_path: Path) -> None:
    made = project(tmp_path)
    folder = stored(tmp_path)
    with RunDirectory.own(folder):
        refused(made, "a run is in progress here")
    assert used_artifacts(made) == both()


def test_a_crashed_run_counts(tmp_path: Path) -> None:
    made = project(tmp_path)
    folder = stored(tmp_path)
    with RunDirectory.own(folder) as directory:
        directory.mark_running()
        queue = Queue(directory)
        queue.append([item(3, provenance(artifact="crashed"), lane=8)])
        queue.close(clean=False)
    assert used_artifacts(made) == both() | {digest("crashed")}


def test_a_header_with_one_good_copy(tmp_path: Path) -> None:
    made = project(tmp_path)
    path = segment(stored(tmp_path))
    content = path.read_bytes()
    path.write_bytes(bytes(COPY_SIZE) + content[COPY_SIZE:])
    assert used_artifacts(made) == both()
    path.write_bytes(bytes(HEADER_SIZE) + content[HEADER_SIZE:])
    refused(made, "doesn't say whose it is")
    path.write_bytes(b"")
    refused(made, "doesn't say whose it is")


def test_links_are_followed_and_those_that_lead_nowhere_are_a_doubt(tmp_path: Path) -> None:
    made = project(tmp_path / "project")
    folder = stored(tmp_path / "other disk")
    (tmp_path / "project/runs").mkdir(parents=True)
    link = tmp_path / "project/runs/main"
    link.symlink_to(folder)
    (folder / "circle").symlink_to(folder)
    assert used_artifacts(made) == both()
    folder.rename(tmp_path / "unmounted")
    refused(made, "can't be read: No such file")
    whole = evolve(made, runs_dir=link)
    refused(whole, "can't be read: No such file")


def test_a_runs_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    refused(project(tmp_path), "can't be read: Not a directory")
