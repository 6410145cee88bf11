"""What a disk that is full, or refuses, does to a whole `fafo run`: one clear line, and the next goes on.

A small tmpfs fills up; a shim between the process and libc refuses a sync or a write, or writes half.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.helpers import build, exported, fafo, fafo_json, identities, write_project
from tests.mounts import mounting

pytestmark = pytest.mark.slow

ROWS = 2_000
SHIM = Path(__file__).parents[1] / "disk" / "shim.c"
REFUSED = "the disk refused: Input/output error"
UNSURE = "the disk couldn't confirm a write: Input/output error"
FULL = "No space left on device"

# Seeded faults: each takes the place of what the product does right.
SYNC_BELIEVED = """
from fafo_run.log import fs
def syncing(path, call, *args):
    try:
        call(*args)
    except OSError:
        pass
fs.syncing = syncing
"""
WRITE_BELIEVED = """
from fafo_run.log import fs
def write_all(disk, path, fd, data, offset=0):
    try:
        disk.pwrite(fd, memoryview(data), offset)
    except OSError:
        pass
fs.write_all = write_all
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = write_project(tmp_path / "project", ROWS)
    build(folder)
    return folder


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc isn't here")
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl"], check=True)
    return made


def run(project: Path, fault: str = "", env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """`fafo run` with a seeded fault; return the exit code and what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", fault + "\nfrom fafo_run.cli import main\nmain()", "-C", str(project), "run"],
        capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
        env=os.environ | dict(env or {}),
    )  # fmt: skip
    return done.returncode, done.stderr


def check_stopped(code: int, said: str, why: str) -> None:
    assert code == 1, said
    assert "Traceback" not in said
    assert [line.count(why) for line in said.splitlines() if why in line] == [1], said
    assert said.count("cure:") == 1


def check_whole(project: Path) -> None:
    """The next run goes on, and then each identity is there once."""
    fafo(project, "run", "--quiet")
    report = fafo_json(project, "verify")
    assert report["verdict"] == "ok", report
    assert report["completeness"]["completed"] == ROWS
    assert Counter(row["identity"] for row in exported(project)) == Counter(identities(project))


def full(project: Path, left: int, fault: str = "") -> None:
    """Run on a tmpfs of 64 MiB of which `left` bytes are free."""
    with mounting(project / "runs", "-t", "tmpfs", "-o", "size=64m", "tmpfs"):
        (project / "runs" / "ballast").write_bytes(bytes((64 << 20) - left))
        check_stopped(*run(project, fault), FULL)
        (project / "runs" / "ballast").unlink()
        check_whole(project)


@pytest.mark.mounts
@pytest.mark.parametrize("left", [16 << 10, 200_000, 350_000, 500_000])
def test_a_disk_of_64_mib_that_fills_up(project: Path, left: int) -> None:
    full(project, left)


@pytest.mark.mounts
def test_a_full_disk_shows_a_write_that_is_believed(project: Path) -> None:
    with pytest.raises(AssertionError):
        full(project, 500_000, WRITE_BELIEVED)


def refused(project: Path, shim: Path, part: str, call: str, at: int, why: str, fault: str = "") -> None:
    env = {"LD_PRELOAD": str(shim), "FI_PATH": f"/runs/main/{part}/", "FI_CALL": call, "FI_AT": str(at)}
    check_stopped(*run(project, fault, env), why)
    check_whole(project)


@pytest.mark.parametrize(("part", "at"), [("queue", 1), ("queue", 3), ("results", 1), ("results", 4)])
def test_a_sync_that_is_refused(project: Path, shim: Path, part: str, at: int) -> None:
    refused(project, shim, part, "fdatasync", at, UNSURE)


@pytest.mark.parametrize(("part", "at"), [("queue", 1), ("queue", 3), ("results", 1), ("results", 3)])
def test_a_write_that_is_refused(project: Path, shim: Path, part: str, at: int) -> None:
    refused(project, shim, part, "pwrite", at, REFUSED)


@pytest.mark.parametrize(
    ("call", "why", "fault"), [("fdatasync", UNSURE, SYNC_BELIEVED), ("pwrite", REFUSED, WRITE_BELIEVED)]
)
def test_refusals_show_one_that_is_passed_over(
    project: Path, shim: Path, call: str, why: str, fault: str
) -> None:
    with pytest.raises(AssertionError):
        refused(project, shim, "results", call, 3, why, fault)


def halves(project: Path, shim: Path, fault: str = "") -> None:
    env = {"LD_PRELOAD": str(shim), "FI_PATH": ".seg", "FI_SHORT": "1"}
    code, said = run(project, fault, env)
    assert code == 0, said
    check_whole(project)


def test_writes_that_are_short(project: Path, shim: Path) -> None:
    halves(project, shim)


def test_short_writes_show_one_that_is_believed(project: Path, shim: Path) -> None:
    with pytest.raises(AssertionError):
        halves(project, shim, WRITE_BELIEVED)
