"""Stand-ins for SGLang servers, sound and faulty, for a `fafo` in another process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from attrs import define, frozen

from tests.fake_sglang import FakeSglang, Fault
from tests.fault_server import FaultServer
from tests.helpers import MAIN, REPO, build


class Served(Protocol):
    """A server, whatever it is."""

    url: str


_SIZES = {"vocab_size": 49_152, "context_length": 8_192}
"""What the model of `MAIN` has."""


@contextmanager
def serving(fault: Fault | None = None, **settings: Any) -> Iterator[FakeSglang]:
    """Run the protocol's stand-in in a thread, for a `fafo` in another process."""
    server = FakeSglang(**_SIZES | settings)
    server.fault = fault
    with _in_a_thread([server]):
        yield server


@contextmanager
def _in_a_thread(servers: Sequence[FakeSglang]) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop() -> None:
        for server in servers:
            await server.__aexit__()
        # A connection that was broken off is closed a turn of the loop later.
        for _ in range(3):
            await asyncio.sleep(0)

    async def start() -> None:
        for server in servers:
            await server.__aenter__()

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        yield
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@frozen
class Record:
    """What a faulty server was asked since its last reset, and what it answered."""

    asked: dict[str, int]
    """Requests by item (identity in hex); warm-ups and probes by the first word of their name."""
    answered: dict[str, int]
    """Of them, what was computed; the answer may have been lost or spoilt on its way."""
    met: dict[str, int]
    """Requests by the fault they met."""
    restarts: int
    aborted: list[str]
    """Names of requests that the client asked to be aborted."""
    hung: list[str]
    """Names of requests that hung until the client went away."""
    running: list[str]
    """Names of requests that are under way."""
    listening: bool
    counted: dict[str, int]
    times: list[float]
    """When each request came, in seconds since the epoch."""


@define
class Faulty:
    """A server with faults, as the test sees it."""

    url: str
    control: str
    process: subprocess.Popen[bytes] | None = None
    """None for one in a thread."""

    def on(self, fault: str, **fields: Any) -> None:
        """Switch a fault on: `fields` are those of `tests.fault_kinds.Fault`; `for` is in seconds."""
        self._ask("POST", "/_faults", {"fault": fault, **fields})

    def mix(self, seed: int, share: float) -> None:
        """Let so many of the requests meet any fault, at random."""
        self._ask("POST", "/_faults", {"mixture": seed, "share": share})

    def off(self) -> None:
        """Switch all faults off; what hangs goes on hanging."""
        self._ask("DELETE", "/_faults")

    def reset(self) -> None:
        """Be as at the start."""
        self._ask("POST", "/_reset")

    def record(self) -> Record:
        """Return what was recorded since the last reset."""
        return Record(**json.loads(self._ask("GET", "/_record")))

    def count(self) -> int:
        """Return how many requests it answered."""
        return int(self._ask("GET", "/_count"))

    def kill(self) -> None:
        """End its process with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def freeze(self) -> None:
        """Stop its process with SIGSTOP: connections stay, and nothing answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def start(self, **settings: Any) -> None:
        """Start its process again, on the same port and with nothing recorded."""
        self.process, said = _started(int(self.url.rpartition(":")[2]), settings)
        self.control = said["control"]

    def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.control + path, data, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            found: bytes = response.read()
            return found


@contextmanager
def faulty_threads(count: int, **settings: Any) -> Iterator[list[Faulty]]:
    """Run so many faulty servers in a thread."""
    servers = [FaultServer(**_SIZES | settings) for _ in range(count)]
    with _in_a_thread(servers):
        yield [Faulty(server.url, server.control) for server in servers]


@contextmanager
def faulty_processes(count: int, **settings: Any) -> Iterator[list[Faulty]]:
    """Run so many faulty servers, each in a process of its own."""
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            process, said = _started(0, settings)
            servers.append(Faulty(said["url"], said["control"], process))
            stack.callback(_ended, servers[-1])
        yield servers


def _started(port: int, settings: dict[str, Any]) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fault_server", "--port", str(port), "--settings", json.dumps(settings)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO,
    )  # fmt: skip
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def _ended(server: Faulty) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.communicate()


def pace(seconds: float) -> Fault:
    """Return a fault that makes every answer to an item take so long; warm-ups are quick."""

    async def wait(_: web.Request, body: dict[str, Any]) -> None:
        if not body["rid"].startswith("warm"):
            await asyncio.sleep(seconds)

    return wait


def gated(gate: threading.Event) -> Fault:
    """Return a fault that holds every answer to an item back until the gate is set; warm-ups are quick."""

    async def wait(_: web.Request, body: dict[str, Any]) -> None:
        while not body["rid"].startswith("warm") and not gate.is_set():
            await asyncio.sleep(0.02)

    return wait


def use(folder: Path, server: Served, main: str = MAIN) -> Path:
    """Let a project ask the server, and build it."""
    return use_all(folder, [server], main)


def use_all(folder: Path, servers: Sequence[Served], main: str = MAIN, **settings: int | float) -> Path:
    """Let a project ask several servers, with these `settings` of `[engine]`, and build it."""
    lines = ['kind = "sglang"', f"urls = {json.dumps([server.url for server in servers])}"]
    lines += [f"{key} = {value}" for key, value in settings.items()]
    if "max_running" in settings:
        main = main.replace("max_running = 8\n", "")
    (folder / "fafo.toml").write_text(main.replace('kind = "fake"', "\n".join(lines)), "utf-8")
    build(folder)
    return folder
