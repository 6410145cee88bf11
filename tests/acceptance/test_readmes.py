"""The commands of the examples' READMEs run word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPO

pytestmark = pytest.mark.slow

READMES = sorted(path.relative_to(REPO) for path in (REPO / "examples").glob("*/README.md"))


def commands(readme: Path) -> list[str]:
    """Return the lines of a README's ```sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", readme.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("readme", READMES, ids=str)
def test_every_command_of_an_example_runs(readme: Path, tmp_path: Path) -> None:
    shutil.copytree(REPO / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("build", "runs"))
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    told = commands(REPO / readme)
    assert told, f"{readme} has no ```sh block"
    for command in told:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
