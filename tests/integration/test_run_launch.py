"""A run with servers of its own: it starts them, lives through their deaths, and leaves none behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fafo_run.run import evidence
from tests.helpers import (
    MAIN,
    REPO,
    build,
    exported,
    fafo,
    fafo_json,
    kill,
    reaches,
    start,
    until,
    write_project,
)
from tests.launch_kit import COMMAND, Starts, alive, starts_in

ROWS = 40


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    with starts_in(tmp_path) as read:
        yield read


STAND_IN = (sys.executable, "-m", "tests.launched_fake")


def project(folder: Path, *args: str, replicas: int = 2, command: Sequence[str] = STAND_IN) -> Path:
    """A project whose engine starts stand-ins for servers."""
    env = f'{{ STARTS = "{folder}/starts", PYTHONPATH = "{REPO}" }}'
    lists = f"command = {json.dumps(command)}, args = {json.dumps(args)}"
    launch = f"replicas = {replicas}, gpus = 0, {lists}, env = {env}"
    main = MAIN.replace('kind = "fake"', f'kind = "sglang"\nlaunch = {{ {launch} }}')
    write_project(folder, ROWS, main=main)
    build(folder)
    return folder


def left(starts: Starts) -> list[int]:
    return [each["pid"] for each in starts() if alive(each["pid"])]


def asked(folder: Path) -> set[str]:
    """Return the servers that the run used."""
    return {event.server for event in evidence.read(folder / "runs" / "main")[0]}


def test_a_run_starts_its_servers_and_ends_them(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path)
    done = fafo(tmp_path, "run")
    assert "is ready after" in done.stderr
    assert f"{ROWS} done" in done.stderr
    assert len(starts()) == 2
    assert not left(starts)
    ports = {each["argv"][each["argv"].index("--port") + 1] for each in starts()}
    assert {log.name for log in (tmp_path / "runs" / "main" / "servers").iterdir()} == {
        f"{port}.log" for port in ports
    }
    assert asked(tmp_path) == {f"http://127.0.0.1:{port}" for port in ports}


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path, "--pace", "0.05", replicas=1)
    run = start(tmp_path, "run", "--quiet")
    reaches(tmp_path, lambda status: status.completed > 0, "some are done")
    os.kill(starts()[0]["pid"], signal.SIGKILL)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert len(starts()) == 2
    assert not left(starts)
    assert len(exported(tmp_path)) == ROWS


def test_kill_9_of_a_run_leaves_no_server(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path, "--pace", "0.2")
    run = start(tmp_path, "run", "--quiet")
    reaches(tmp_path, lambda status: status.completed > 0, "some are done")
    assert len(left(starts)) == 2
    kill(run)
    until(lambda: not left(starts), "nothing is left")


def test_status_says_that_they_load_and_since_when(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path, "--mute", command=COMMAND)
    run = start(tmp_path, "run")
    try:
        reaches(tmp_path, lambda status: status.notice.startswith("waiting for 2 of 2 servers"), "they load")
        found = fafo_json(tmp_path, "status")
        assert " to load, since 2" in found["notice"]
        assert (found["status"], found["in_flight"]) == ("running", 0)
        assert f"  waits: {found['notice']}" in fafo(tmp_path, "status").stdout
    finally:
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    assert fafo_json(tmp_path, "status")["notice"] == "", "nobody works on it"


def test_interrupted_while_they_start(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path)
    run = start(tmp_path, "run")
    until(lambda: len(starts()) == 2, "both are being started")
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert not left(starts)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_ends_when_its_servers_have(
    tmp_path: Path, starts: Starts, number: signal.Signals
) -> None:
    project(tmp_path, "--mute", "--stubborn", replicas=1, command=COMMAND)
    run = start(tmp_path, "run")
    until(lambda: len(starts()) == 1, "it is being started")
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert not left(starts), "what comes next on this machine may need its GPU"


@pytest.mark.slow
def test_a_run_goes_on_after_down_and_up(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path, "--pace", "0.05", replicas=1)
    fafo(tmp_path, "engine", "up")
    try:
        run = start(tmp_path, "run", "--quiet")
        reaches(tmp_path, lambda status: status.completed > 0, "some are done")
        fafo(tmp_path, "engine", "down")
        reaches(tmp_path, lambda status: bool(status.notice), "it waits, and says so")
        fafo(tmp_path, "engine", "up")
        _, said = run.communicate(timeout=120)
        assert run.returncode == 0, said
    finally:
        fafo(tmp_path, "engine", "down")
    assert len(exported(tmp_path)) == ROWS
    assert not left(starts)


@pytest.mark.slow
def test_a_run_uses_what_is_up(tmp_path: Path, starts: Starts) -> None:
    project(tmp_path)
    urls = fafo(tmp_path, "engine", "up").stdout.split()
    try:
        assert "uses the 2 servers of `fafo engine up`" in fafo(tmp_path, "run").stderr
        assert asked(tmp_path) == set(urls)
        assert fafo_json(tmp_path, "verify", "--live")["verdict"] == "ok"
        assert fafo_json(tmp_path, "plan")["servers"][0]["url"] in urls
        assert len(left(starts)) == len(starts()) == 2
    finally:
        fafo(tmp_path, "engine", "down")
    assert not left(starts)
    said = fafo(tmp_path, "verify", "--live", check=1).stderr
    assert "no server of the engine default is up" in said
    assert "`fafo engine up` starts them" in said
