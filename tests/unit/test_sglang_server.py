"""The helper that starts the real server: what it says when it can't, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests import sglang_server

STUBBORN = """#!{python}
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    signal.pause()  # one of the server's other processes; it hears no SIGTERM either
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the place of serve.sh."""
    script = tmp_path / "serve"
    script.touch(0o755)
    monkeypatch.setattr(sglang_server, "SERVE", script)
    monkeypatch.setenv(sglang_server.VENV, str(tmp_path))
    return script


def alive_in_group(group: int) -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = status.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(pgrp) == group and state != "Z":
            found.append(status.parent.name)
    return found


def test_ends_a_server_that_hears_no_sigterm_with_all_its_processes(
    serve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve.write_text(STUBBORN.format(python=sys.executable))
    monkeypatch.setattr(sglang_server, "GRACE", 0.1)
    groups, end = [], sglang_server.stop

    def stop(server: subprocess.Popen[bytes]) -> None:
        groups.append(server.pid)
        end(server)

    monkeypatch.setattr(sglang_server, "stop", stop)
    with sglang_server.running(tmp_path, tmp_path / "log") as url, urllib.request.urlopen(f"{url}/health"):
        pass
    (group,) = groups
    while alive_in_group(group):  # killed, perhaps not gone yet; the test's own limit ends this
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(group, 0)


def test_shows_the_end_of_the_log_of_a_server_that_ended(serve: Path, tmp_path: Path) -> None:
    serve.write_text("#!/bin/sh\necho no such model; exit 3\n")
    with (
        pytest.raises(pytest.fail.Exception, match=r"ended; the end of .*\nno such model"),
        sglang_server.running(tmp_path, tmp_path / "log"),
    ):
        pass


def test_shows_the_end_of_the_log_of_a_server_that_never_gets_ready(
    serve: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve.write_text("#!/bin/sh\necho still loading; exec sleep 1000\n")
    monkeypatch.setattr(sglang_server, "READY", 1.0)
    with (
        pytest.raises(pytest.fail.Exception, match=r"wasn't ready after 1 s; the end of .*\nstill loading"),
        sglang_server.running(tmp_path, tmp_path / "log"),
    ):
        pass


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_the_servers_packages_a_test_is_skipped_and_in_ci_it_fails(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.delenv(sglang_server.VENV, raising=False)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=r"run \.ci/sglang/install.sh"):
        sglang_server.venv()
