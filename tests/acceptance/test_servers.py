"""Two real SGLang servers: warm prefixes, the hit rate by two counts, a kill, a cold start, a frozen one."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fafo_run.run import evidence
from fafo_run.run.store import RunReader
from tests import sglang_server, tiny_model
from tests.helpers import CLASS, FAFO, MAIN, MODEL, fafo, fafo_json, write_project
from tests.serving import use_all
from tests.sglang_server import RealServer

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(1200)]

CLASSES, ROWS = 3, 400
ITEMS = CLASSES * ROWS
FROZEN = 30.0
"""Seconds for which a server is stopped."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealServer, RealServer]]:
    sglang_server.venv()
    folder = tmp_path_factory.mktemp("servers")
    model = tiny_model.make(folder / "model")
    with (
        sglang_server.serving(model, folder / "one.log", flags=["--enable-metrics"]) as one,
        sglang_server.serving(model, folder / "other.log", flags=["--enable-metrics"]) as other,
    ):
        yield one, other


def project(folder: Path, servers: tuple[RealServer, RealServer], name: str, *, tokens: int) -> Path:
    """Write and build a project whose prefixes nobody has asked these servers for yet."""
    main = MAIN.replace(MODEL, str(servers[0].model)).replace("max_running = 8\n", "")
    classes = {}
    for at in range(CLASSES):
        rules = " ".join(f"Rule {rule} of {name} class {at} is that facts are facts." for rule in range(20))
        asks = CLASS.replace('prompt = "rules.md"', f'content = "{rules}"')
        classes[f"c{at}"] = asks.replace("max_new_tokens = 8", f"max_new_tokens = {tokens}")
    return use_all(write_project(folder, ROWS, classes=classes), servers, main)


def events(folder: Path, kind: type[evidence.AnyEvent]) -> list[evidence.AnyEvent]:
    found, torn = evidence.read(folder / "runs" / "main")
    assert torn == 0
    return [event for event in found if isinstance(event, kind)]


def everything_once(folder: Path) -> None:
    found = fafo_json(folder, "verify", check=None)["completeness"]
    assert (found["total"], found["completed"], found["failed"]) == (ITEMS, ITEMS, 0)
    assert (found["doubled"], found["lost"], found["waiting"], found["undecodable"]) == (0, 0, 0, 0)
    with RunReader.open(folder / "runs" / "main") as reader:
        assert len({record.identity for record in reader.results.effective()}) == ITEMS


def test_two_cold_servers_reach_the_ceiling_by_both_counts(
    servers: tuple[RealServer, RealServer], tmp_path: Path
) -> None:
    folder = project(tmp_path, servers, "cold", tokens=8)
    fafo(folder, "run", "--quiet")
    everything_once(folder)
    warmed = Counter((event.server, event.artifact) for event in events(folder, evidence.Warmed))
    assert len(warmed) == 2 * CLASSES and set(warmed.values()) == {1}
    report = fafo_json(folder, "verify")
    assert report["verdict"] == "ok" and report["ratio"] >= 0.99
    for url, found in report["counters"].items():
        assert found["agreement"] in ("agree", "lost_requests"), url
        run, server = found["run"], found["server"]
        # An idle server takes over what it believes to wait inside the other, which may compute it too.
        twice = server["requests"] - run["requests"]
        assert 0 <= twice <= run["lost"], url
        for tokens in ("prompt_tokens", "cached_tokens"):
            answered = server[tokens] * run["requests"] / server["requests"]
            assert run[tokens] == pytest.approx(answered, rel=0.005), (url, tokens)
        assert run["requests"] > ROWS / 4, "both servers had their share"
    assert set(report["counters"]) == {server.url for server in servers}


def test_a_killed_server_and_a_frozen_one_lose_and_double_nothing(
    servers: tuple[RealServer, RealServer], tmp_path: Path
) -> None:
    one, other = servers
    # So many that the killed server is back before all is done.
    folder = project(tmp_path, servers, "kill", tokens=64)
    run = subprocess.Popen(
        [str(FAFO), "-C", str(folder), "run", "--quiet"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        reached(run, folder, ITEMS // 10)
        one.signal(signal.SIGKILL)
        one.start()
        reached(run, folder, ITEMS // 5)
        other.signal(signal.SIGSTOP)
        time.sleep(FROZEN)
        other.signal(signal.SIGCONT)
        _, said = run.communicate(timeout=600)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, said.decode()
    everything_once(folder)
    (back,) = [event for event in events(folder, evidence.Returned) if event.server == one.url]
    assert back.restarted
    warmed = Counter(
        (event.artifact, event.why) for event in events(folder, evidence.Warmed) if event.server == one.url
    )
    assert all(count == 1 for count in warmed.values()), "once before, and once after its restart"


def reached(run: subprocess.Popen[bytes], folder: Path, items: int) -> None:
    """Wait until so many items are done."""
    while fafo_json(folder, "status")["completed"] < items:
        assert run.poll() is None, "the run ended too early for the test to show anything"
        time.sleep(0.2)
