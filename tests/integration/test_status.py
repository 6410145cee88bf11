"""`fafo status` where the store isn't as a run left it, and beside one that removes what is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafo_build.bake.baked import load_baked
from fafo_build.project.load import load_project
from fafo_run.log import listing
from fafo_run.log.listing import SegmentFile, segments
from fafo_run.run.view import open_view
from fafo_run.watch import status
from tests.helpers import build, fafo, fafo_json, write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path, rows=5)
    build(folder)
    return folder


def test_a_store_without_its_format_is_no_new_run(project):
    assert fafo_json(project, "status")["status"] == "new"
    fafo(project, "submit")
    assert fafo_json(project, "status")["queued"] == 5
    (project / "runs/main/FORMAT").unlink()
    said = fafo(project, "status", check=1).stderr
    assert "FORMAT is gone, and segments are here" in said and "cure: " in said


def test_a_segment_that_is_collected_after_it_was_listed_is_not_counted(project, monkeypatch):
    fafo(project, "submit")

    def listed(disk, folder):
        gone = SegmentFile(folder / "00000099.seg", 99)
        return [*segments(disk, folder), gone]

    monkeypatch.setattr(listing, "segments", listed)
    loaded = load_project(project)
    found = status.status_of(open_view(loaded, load_baked(loaded)), project / "runs" / "main")
    assert (found.queued, found.store.segments) == (5, 1)
