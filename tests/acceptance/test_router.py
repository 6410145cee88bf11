"""The real sglang-router before two servers: a run over its one URL, also when a server behind it goes."""

from __future__ import annotations

import http.client
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import sglang_server
from tests.helpers import FAFO, fafo, fafo_json, write_project
from tests.serving import faulty_processes, use_all

pytestmark = [pytest.mark.slow, pytest.mark.alone]

ITEMS = 200


@contextmanager
def router(urls: list[str], log: Path) -> Iterator[str]:
    """Run the router of the server's virtual environment; give its URL when it is ready."""
    python = sglang_server.venv() / "bin" / "python"
    port, metrics = _free_port(), _free_port()
    arguments = ["--port", str(port), "--prometheus-port", str(metrics), "--worker-urls", *urls]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), "-m", "sglang_router.launch_router", *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _ready(url):
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-2000:]
            time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("one_dies", [False, True])
def test_a_run_over_a_router_loses_and_doubles_nothing(tmp_path: Path, one_dies: bool) -> None:
    with (
        faulty_processes(2, seconds_per_token=0.005) as servers,
        router([server.url for server in servers], tmp_path / "router.log") as url,
    ):
        folder = use_all(
            write_project(tmp_path / "project", ITEMS), [SimpleNamespace(url=url)], max_running=8
        )
        if one_dies:
            busy = subprocess.Popen(
                [str(FAFO), "-C", str(folder), "run", "--quiet"], stdin=subprocess.DEVNULL
            )
            while sum(_items(server.record().asked) for server in servers) < ITEMS // 4:
                assert busy.poll() is None, "the run ended too early for the test to show anything"
            max(servers, key=lambda server: _items(server.record().asked)).kill()
            assert busy.wait(timeout=240) == 0
        else:
            fafo(folder, "run", "--quiet")
        found = fafo_json(folder, "verify", check=None)
    done = found["completeness"]
    assert (done["completed"], done["failed"], done["doubled"], done["lost"]) == (ITEMS, 0, 0, 0)
    assert list(found["by_server"]) == [url]
    if not one_dies:
        assert found["ratio"] > 0.9


def _items(asked: dict[str, int]) -> int:
    return sum(count for name, count in asked.items() if len(name) == 32)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readiness", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
