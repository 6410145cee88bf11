"""Starts the real SGLang server of `.ci/sglang/` for tests, and stops it for sure.

`FAFO_SGLANG_VENV` names the virtual environment that `.ci/sglang/install.sh` made.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

VENV = "FAFO_SGLANG_VENV"
SERVE = Path(__file__).parents[1] / ".ci" / "sglang" / "serve.sh"

READY = 180.0
"""Seconds until /health answers 200; nearly all of them are imports."""

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL: draining can hang."""

TAIL = 60
"""Lines of the log that are shown when the server doesn't come up."""


def venv() -> Path:
    """Return the server's virtual environment; skip the test, or in CI fail it, when there is none."""
    value = os.environ.get(VENV)
    if value:
        return Path(value)
    message = f"{VENV} isn't set: run .ci/sglang/install.sh DIR, and set it to DIR"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def running(model: Path, log: Path, *, flags: Sequence[str] = ()) -> Iterator[str]:
    """Serve the model in the folder `model`, give the server's URL, and leave no process behind.

    The server's output goes to the file `log`; `flags` are added to its command line.
    """
    with serving(model, log, flags=flags) as server:
        yield server.url


@contextmanager
def serving(model: Path, log: Path, *, flags: Sequence[str] = ()) -> Iterator[RealServer]:
    """As `running`, but give the server itself, that can be killed, frozen and started again."""
    server = RealServer(model, log, flags, _free_port())
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.end()


class RealServer:
    """One server on one port, in one process group at a time."""

    def __init__(self, model: Path, log: Path, flags: Sequence[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.model = model
        self._command = [str(SERVE), str(port), str(model), *flags]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it isn't ready yet."""
        env = os.environ | {VENV: str(venv())}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # its processes are one group, and can be ended together
            )

    def wait(self) -> None:
        """Return when it is ready; fail the test with the end of its log when that isn't so in time."""
        assert self._process is not None
        _wait(self._process, self.url, self._log)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes: SIGKILL, SIGSTOP, SIGCONT."""
        assert self._process is not None
        _signal(self._process, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self) -> None:
        """End it and every process that it started."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
            stop(self._process)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and every process it started."""
    _signal(server, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(GRACE)
    _signal(server, signal.SIGKILL)
    server.wait()


def _signal(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # all of them are gone
        os.killpg(server.pid, number)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, http.client.HTTPException, OSError):
            time.sleep(0.5)
    state = "ended" if server.poll() is not None else f"wasn't ready after {READY:.0f} s"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])
    pytest.fail(f"the SGLang server {state}; the end of {log}:\n{tail}")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
