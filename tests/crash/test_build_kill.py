"""A build that is killed, or finds no room, leaves the build before it; the next build ends well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import fafo, start, write_project

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def tried(kind: str, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Run the scenario; return what each try found, and what the builds said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.build_child", kind, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("kind", ["fresh-kill", "kill"])
def test_kill_9_before_every_change_of_the_disk(tmp_path: Path, kind: str) -> None:
    found, _ = tried(kind, tmp_path)
    *killed, whole = found
    assert len(killed) > 10, "the build writes several files, each in several steps"
    assert {one["code"] for one in killed} == {-9}
    assert [one["lock"] for one in killed] == sorted((one["lock"] for one in killed), reverse=True)
    assert {one["lock"] for one in killed} <= {"old", "new"}
    if kind == "kill":
        assert killed[-1]["lock"] == "new", "the collection comes after the lock"
    assert any(one["left"] for one in killed), "some are killed while they write"
    assert whole == {"code": 0, "lock": "new", "left": [], "lost": [], "again": 0, "same": True}
    for one in killed:
        assert (one["lost"], one["again"], one["same"]) == ([], 0, True)


def test_no_room_on_the_disk(tmp_path: Path) -> None:
    found, said = tried("room", tmp_path)
    *full, whole = found
    assert whole["code"] == 0
    assert whole["same"]
    assert len([one for one in full if one["code"] == 1]) == len(full)
    assert said.count("can't be written: File too large") == len(full)
    assert said.count("cure: make room or mend the permissions, then run `fafo build`") == len(full)
    for one in full:
        assert (one["lock"], one["left"], one["lost"], one["again"], one["same"]) == ("old", [], [], 0, True)


def test_four_builds_at_once(tmp_path: Path) -> None:
    folder = write_project(tmp_path)
    builds = [start(folder, "build", "--gc", "--json") for _ in range(4)]
    said = [one.communicate(timeout=280) for one in builds]
    assert [one.returncode for one in builds] == [0] * 4, said
    told = [json.loads(out) for out, _ in said]
    assert sorted(one["current"] for one in told) == [False, True, True, True]
    assert len({one["classes"]["ask"]["artifact"] for one in told}) == 1
    fafo(folder, "build", "--check")
    assert not list((folder / "build").rglob(".writing-*"))
