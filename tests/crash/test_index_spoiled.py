"""Whatever is done to the index, the records are there: it is derived, and it may kill whoever opens it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def spoiled(folder: Path, *arguments: str) -> list[str]:
    """Run the server; return what went wrong, a line each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.index_server", str(folder), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong: list[str] = json.loads(done.stdout)["wrong"]
    return wrong


def test_an_index_that_isnt_what_it_should_be(tmp_path: Path) -> None:
    assert spoiled(tmp_path, "--cycles", "14") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_many_that_arent(tmp_path: Path, seed: int) -> None:
    assert spoiled(tmp_path, "--cycles", "140", "--seed", str(seed)) == []


def test_one_that_is_believed_is_seen(tmp_path: Path) -> None:
    wrong = " ".join(spoiled(tmp_path, "--cycles", "14", "--fault", "trusting"))
    assert all(how in wrong for how in ("old", "ahead", "cut")) and "with -7" in wrong
