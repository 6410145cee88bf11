"""The guard of one server: a process that starts it, starts it again when it dies, and ends all of it.

It is run as a program, by `python -I -S launch_guard.py` in a session of its own, and outlives whoever
started it, however that ended. It knows nothing of fafo or SGLang, and uses the standard library alone.

On stdin comes one line of JSON, the `Orders`, then single bytes: `READY`, `AGAIN`, `KEEP`. The end of stdin
means that whoever started it is gone, so that the server must go, too; after `KEEP` it means nothing. SIGTERM
ends the server in any case, and a second one doesn't wait for it. On stdout go the events, JSON lines:
`{"started": PID}`, `{"late": SECONDS}`, `{"ended": CODE, "again": SECONDS}`; a negative code is a signal, and
null seconds are never.

Whoever started it sees to the first start. Each further one is the guard's to see to: it asks the server over
HTTP until that is ready, and kills one that isn't in time, as one whose driver hangs.

A server is a tree of processes, and some leave their parent's group or session. The guard is their subreaper:
whoever loses its parent becomes a child of the guard, so that walking down from the guard finds all.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TypedDict

READY = b"r"
"""The server is ready: when it dies from now on, it is started again. Before, its death is the end."""
AGAIN = b"a"
"""The server was ready under an earlier guard: as after `READY`, but this start is the guard's to see to."""
KEEP = b"k"
"""From now on the server outlives whoever started it."""

NO_SUCH_PROGRAM = 127
"""The exit code of a program that isn't there, as of a shell."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_POLL = 0.02
"""Seconds between two looks whether what was killed is gone."""
_GONE = "ZX"
_ASK = 1.0
"""Seconds from a no until the server is asked again whether it is ready."""
_PATIENCE = 30.0
"""Seconds from a question that isn't answered until the next one. A busy server takes up to 20."""


class Orders(TypedDict):
    """What the guard is told when it starts."""

    command: list[str]
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    first: float
    """Seconds from a server's death until it is started again; after each further one twice as long."""
    longest: float
    """But no longer than this, in seconds."""
    settled: float
    """Seconds that a server that got ready must have lived for its death to count as the first one."""
    within: float
    """Seconds that each start may take until the server is ready."""
    host: str
    port: int
    path: str
    """What answers 200 over HTTP when the server is ready."""


class Stat(NamedTuple):
    """What /proc says of a process."""

    state: str
    parent: int
    session: int
    started: int
    """In clock ticks since the machine's start: with it, a process number that came round again shows."""


def stat(pid: int) -> Stat | None:
    """Return what /proc says of a process, None when there is none of this number."""
    try:
        # A program's name stands in brackets, and may hold any character.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Stat(fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def is_alive(found: Stat | None) -> bool:
    """Whether there is a process, and it is more than a note of how it ended."""
    return found is not None and found.state not in _GONE


def descendants(root: int) -> Iterator[int]:
    """Yield the processes below one, in any depth, that aren't dead."""
    children: dict[int, list[tuple[int, Stat]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := stat(int(entry.name))) is not None:
            children.setdefault(found.parent, []).append((int(entry.name), found))
    waiting = [root]
    while waiting:
        for pid, found in children.get(waiting.pop(), ()):
            waiting.append(pid)
            if is_alive(found):
                yield pid


class Question:
    """Asks a server once whether it is ready. Nobody but `select` waits for the answer."""

    def __init__(self, orders: Orders) -> None:
        self._said = b""
        self.socket: socket.socket | None = None
        """None where it doesn't listen."""
        host, port = orders["host"], orders["port"]
        named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with suppress(OSError):
            self.socket = socket.create_connection((host, port), timeout=_ASK)
            self.socket.setblocking(False)
            self.socket.sendall(f"GET {orders['path']} HTTP/1.0\r\nHost: {named}\r\n\r\n".encode())

    def answer(self) -> bool | None:
        """Return whether it is ready, None when that isn't known yet."""
        if self.socket is None:
            return False
        try:
            part = self.socket.recv(64)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        self._said += part
        if part and len(self._said) < len(b"HTTP/1.1 200"):
            return None
        return self._said[len(b"HTTP/1.1 ") :].startswith(b"200")

    def close(self) -> None:
        """Ask no more."""
        if self.socket is not None:
            self.socket.close()


class Guard:
    """One server's."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._server: subprocess.Popen[bytes] | None = None
        self._born = 0.0
        self._wait = orders["first"]
        self._again: float | None = None
        """When the server is to be started again, on the monotonic clock."""
        self._ready = self._kept = False
        """Whether the server was ever ready; whether it outlives whoever started it."""
        self._up = False
        """Whether the server is ready since it was started last."""
        self._question: Question | None = None
        """That isn't answered yet."""
        self._ask_at = 0.0
        """When the next one is due, on the monotonic clock."""
        self._told = 0
        """How often it was told to end."""
        self._heard = True
        """Whether anybody reads the events."""
        self._wake, tell = os.pipe()
        for end in (self._wake, tell):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self) -> int:
        """Guard until told to end, or until the server dies before it was ready; return the exit code."""
        code = self._start()
        while not self._told:
            if code is not None and not self._goes_on_after(code):
                return 1
            self._listen()
            if self._loads:
                self._see_to_start()
            code = self._reap()
            if self._again is not None and time.monotonic() >= self._again:
                code = self._start()
        self._finish()
        return 0

    def _start(self) -> int | None:
        """Start the server; return an exit code in its stead where that isn't possible."""
        self._again = None
        self._born = time.monotonic()
        self._up, self._ask_at = False, self._born
        command = self._orders["command"]
        try:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=sys.stderr,
                start_new_session=True,
                # Should the guard itself be killed.
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        except OSError as error:
            print(f"{command[0]} can't be started: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
            return NO_SUCH_PROGRAM
        self._say({"started": self._server.pid})
        return None

    def _goes_on_after(self, code: int) -> bool:
        """Bury what the server left, and have it started again later, if it was ready once."""
        kill_below(os.getpid())
        self._ask_no_more()
        if not self._ready:
            _note(f"ended with {code}, before it was ready")
            self._say({"ended": code, "again": None})
            return False
        if self._up and time.monotonic() - self._born >= self._orders["settled"]:
            self._wait = self._orders["first"]
        _note(f"ended with {code}, is started again in {self._wait:g} s")
        self._say({"ended": code, "again": self._wait})
        self._again = time.monotonic() + self._wait
        self._wait = min(self._orders["longest"], 2 * self._wait)
        return True

    @property
    def _loads(self) -> bool:
        """Whether it is for the guard to see that the server gets ready."""
        return self._ready and not self._up and self._server is not None

    def _see_to_start(self) -> None:
        """Ask the server whether it is ready; kill it when it isn't in time."""
        now, within = time.monotonic(), self._orders["within"]
        if self._question is not None and (ready := self._question.answer()) is not None:
            self._ask_no_more()
            self._up, self._ask_at = ready, now + _ASK
        if self._up:
            return
        if now >= self._born + within:
            _note(f"isn't ready after {within:g} s, and is killed")
            self._say({"late": within})
            kill_below(os.getpid())
        elif now >= self._ask_at:
            self._ask_no_more()
            self._question = Question(self._orders)
            self._ask_at = now + (_ASK if self._question.socket is None else _PATIENCE)

    def _ask_no_more(self) -> None:
        if self._question is not None:
            self._question.close()
        self._question = None

    def _next(self) -> float | None:
        """Return when the guard is to do something by itself, on the monotonic clock."""
        if self._again is not None or not self._loads:
            return self._again
        return min(self._ask_at, self._born + self._orders["within"])

    def _listen(self) -> None:
        """Wait until something happens: a signal, a word on stdin, an answer, the time of the next deed."""
        when = self._next()
        left = None if when is None else max(0.0, when - time.monotonic())
        ears = [self._wake] if self._kept else [self._wake, sys.stdin.fileno()]
        if self._question is not None and self._question.socket is not None:
            ears.append(self._question.socket.fileno())
        heard, _, _ = select.select(ears, (), (), left)
        if self._wake in heard:
            os.read(self._wake, 4096)
        if sys.stdin.fileno() in heard:
            said = os.read(sys.stdin.fileno(), 4096)
            self._ready = self._ready or READY in said or AGAIN in said
            self._up = self._up or READY in said
            self._kept = self._kept or KEEP in said
            if not said:
                self._told += 1

    def _reap(self) -> int | None:
        """Bury all the dead; return the server's exit code when it is among them."""
        code = None
        with suppress(ChildProcessError):  # no child is left
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if self._server is not None and pid == self._server.pid:
                    code = self._server.returncode = os.waitstatus_to_exitcode(status)
                    self._server = None
        return code

    def _finish(self) -> None:
        """End the server: with SIGTERM first, so that it can put away what it made."""
        if self._server is not None:
            self._server.terminate()
        deadline = time.monotonic() + self._orders["grace"]
        self._told = min(self._told, 1)
        while self._server is not None and self._told < 2 and (left := deadline - time.monotonic()) > 0:
            heard, _, _ = select.select([self._wake], (), (), left)
            if heard:
                os.read(self._wake, 4096)
            self._reap()
        kill_below(os.getpid())
        self._reap()
        _note("ended by fafo")

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._told += 1

    def _say(self, event: dict[str, float | None]) -> None:
        if not self._heard:
            return
        try:
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")
        except BrokenPipeError:
            self._heard = False  # It outlives its reader; the log says the same.


def kill_below(root: int) -> None:
    """Kill every process below one, and return when all are gone: they may start others meanwhile."""
    wait = _POLL
    while found := list(descendants(root)):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(wait)
        wait = min(1.0, 2 * wait)  # One that hangs in a driver takes long to die.


def _note(text: str) -> None:
    """Write a line to the log, which is stderr."""
    print(f"==== fafo, {time.strftime('%Y-%m-%d %H:%M:%S')}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def main() -> int:
    """Guard as told on stdin."""
    head = b""
    # Byte by byte: what follows the line is for select to see.
    while not head.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            return 1
        head += byte
    return Guard(json.loads(head)).run()


if __name__ == "__main__":
    sys.exit(main())
