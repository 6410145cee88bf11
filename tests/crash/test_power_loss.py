"""The power is really cut: ext4 on a loop device is shut down under a worker, and mounted again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import mounting

pytestmark = [pytest.mark.slow, pytest.mark.mounts]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where an image can be mounted."""
    # Where the system's tools are isn't on every user's path.
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
    if shutil.which("mkfs.ext4") is None:
        # Only what can't be mounted may be skipped in CI, which installs this.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("mkfs.ext4 isn't here")
    image = tmp_path / "try"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with mounting(tmp_path / "tried", "-o", "loop", str(image)):
        pass
    return tmp_path


def cuts(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.power_server", str(folder), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_power_cuts(folder: Path, seed: int) -> None:
    told, said = cuts(folder, "--cycles", "50", "--seed", str(seed))
    assert told["broken"] == "", said
    assert told["cuts"] == 50
    assert told["early"] > 0, "some come within recovery"
    assert told["acknowledged"] > 50 * 20


@pytest.mark.parametrize("fault", ["unsynced", "markers", "early"])
def test_power_cuts_show_a_fault(folder: Path, fault: str) -> None:
    told, said = cuts(folder, "--cycles", "75", "--fault", fault)
    assert told["broken"] != "" and "Broken" in said
