"""One server that fafo starts, and its guard: follows what the guard says, asks until the server is ready.

How it is started is the recipe's business (`launch_recipe`); that it is started again when it dies, and ends
when fafo does, the guard's (`launch_guard`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
from attrs import define, field

from fafo_build.errors import EngineError
from fafo_run.engines import launch_guard
from fafo_run.engines.launch_guard import AGAIN, KEEP, READY, Orders, descendants, is_alive, stat
from fafo_run.engines.launch_ports import others_listen
from fafo_run.engines.launch_recipe import TOKEN, Recipe

LATE = 20.0
"""Seconds beyond the grace time for a guard to end; after that it hangs, and is killed."""
FIRST, LONGEST, SETTLED = 1.0, 60.0, 300.0
"""See `launch_guard.Orders`."""
POLL = 0.25
"""Seconds between two questions whether a server is ready."""
TAIL = 15
"""Lines of a log that are shown."""
WIDEST = 300
"""Characters of such a line."""

_HEALTH = "/health"
_KILL_POLL = 0.05
_LOG_END = 65536
_OURS = "==== fafo, "

Tell = Callable[[str], None]


def unheard(_: str) -> None:
    """Say it to nobody."""


@define(eq=False)
class Launched:
    """One server and its guard."""

    recipe: Recipe
    replica: int
    """Its number, from 0."""
    port: int
    gpus: str | None
    """Those that it may see; None for all that fafo sees."""
    log: Path
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    tell: Tell
    """Is called with a line for people when the server dies after it was ready."""
    token: str = field(factory=lambda: uuid.uuid4().hex)
    """What its processes have in their environment."""
    ready: bool = False
    """Whether it has answered once."""
    ended: int | None = None
    """The exit code, when it died before it was ready."""
    began: float = 0.0
    """On the monotonic clock."""
    _guard: subprocess.Popen[bytes] | None = None
    _follower: asyncio.Task[None] | None = None
    _stopping: bool = False
    _over: asyncio.Event = field(factory=asyncio.Event)
    """Set with `ended`."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.recipe.url(self.port)

    @property
    def guard(self) -> int:
        """The guard's process number."""
        assert self._guard is not None
        return self._guard.pid

    def begin(self) -> None:
        """Start it. Raises `EngineError` when the system or the disk refuses."""
        self.began = time.monotonic()
        self._start_guard()
        self._follower = asyncio.create_task(self._follow())

    async def until_ready(self, session: aiohttp.ClientSession) -> bool:
        """Return True when it is ready, False when it died before.

        Raises `EngineError` when it takes longer than it may.
        """
        within = self.recipe.launch.start_within
        while self.ended is None:
            asked = asyncio.create_task(_healthy(session, self.url))
            over = asyncio.create_task(self._over.wait())
            try:
                # Should it have become somebody else's port, there may never be an answer.
                await asyncio.wait({asked, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                asked.cancel()
            if self.ended is None and asked.result() and self._guard is not None and self._is_ours():
                self.ready = True
                _write(self._guard, READY)
                return True
            if time.monotonic() > self.began + within:
                raise self.recipe.error(
                    f"the server at {self.url} isn't ready after {within:g} s{self._end_of_log()}",
                    "see in its log why, or raise start_within",
                    "launch.start_within",
                )
            await asyncio.sleep(POLL)
        if self._follower is not None:
            await asyncio.wait({self._follower})  # Not awaited itself: it mustn't be cancelled with this.
        return False

    def _is_ours(self) -> bool:
        """Return whether it is this server that answers, and not another one that has taken its port: then
        this one will find it taken, and die.
        """
        return not (self.recipe.is_below and others_listen(self.port, descendants(self.guard)))

    def died(self) -> EngineError:
        """Return the error of a server that died before it was ready."""
        assert self.ended is not None
        return self.recipe.error(
            f"the server at {self.url} {how(self.ended)} before it was ready{self._end_of_log()}",
            "mend what its log says; its flags are launch.args",
        )

    def ask_to_end(self) -> None:
        """Have the guard end it; `ends` waits for that."""
        self._stopping = True
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()

    async def ends(self) -> None:
        """Return when no process of it is left, after `ask_to_end`; by force when that takes too long."""
        if self._follower is None:
            return
        await asyncio.wait({self._follower}, timeout=self.grace + LATE)
        if self._follower.done():
            return
        # As where a driver doesn't let a process die.
        self._follower.cancel()
        await self._force()
        if await asyncio.to_thread(marked, self.token):
            self.tell(f"{self.url} doesn't end; look for processes with {TOKEN}={self.token}")

    async def release(self) -> None:
        """Let it go on without this process. Its guard still starts it again when it dies."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})
        if self._guard is not None:
            _write(self._guard, KEEP)
            _close(self._guard)
            self._guard.returncode = 0  # It isn't ours to wait for any more.

    def last_words(self, count: int = 1) -> list[str]:
        """Return the last lines of its log since it was started."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_END))
            lines = file.read().decode(errors="replace").splitlines()
        starts = [at for at, line in enumerate(lines) if line.startswith(_OURS) and ": starts " in line]
        since = lines[starts[-1] + 1 :] if starts else lines
        said = [line for line in since if line.strip() and not line.startswith(_OURS)][-count:]
        # SGLang logs all its settings in one line of 15,000 characters.
        return [line if len(line) <= WIDEST else line[: WIDEST - 1] + "…" for line in said]

    # ---- the guard

    def _start_guard(self) -> None:
        orders = Orders(
            command=self.recipe.command(self.port),
            grace=self.grace,
            first=FIRST,
            longest=LONGEST,
            settled=SETTLED,
            within=self.recipe.launch.start_within,
            host=self.recipe.host,
            port=self.port,
            path=_HEALTH,
        )
        try:
            with self.log.open("ab") as log:
                now = time.strftime("%Y-%m-%d %H:%M:%S")
                log.write(f"{_OURS}{now}: starts {self.recipe.shown(self.port)}\n".encode())
                log.flush()
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", launch_guard.__file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    cwd=self.recipe.root,
                    env=self.recipe.environment(self.gpus, self.token),
                    start_new_session=True,  # What a terminal sends to fafo is not for it.
                )
        except OSError as error:
            raise self.recipe.error(
                f"no server can be started: {error.filename or 'the system'}: {error.strerror}",
                "see to the disk, and to the limits of processes and open files",
            ) from error
        _write(self._guard, json.dumps(orders).encode() + b"\n")

    async def _follow(self) -> None:
        """Follow what the guard says to its end; put another in its place when it was killed."""
        while self._guard is not None:
            await self._listen(self._guard)
            self._guard.wait()
            _close(self._guard)
            if self._stopping or self.ended is not None:
                return
            self.tell(f"{self.url} has lost its guard, and is ended and started again")
            await self._force()
            await self._replace_guard()
            if self._stopping:
                return

    async def _replace_guard(self) -> None:
        wait = FIRST
        while not self._stopping:
            try:
                self._start_guard()
            except EngineError as error:
                self.tell(f"{error}; once more in {wait:g} s")
                await asyncio.sleep(wait)
                wait = min(LONGEST, 2 * wait)
                continue
            if self.ready and self._guard is not None:
                _write(self._guard, AGAIN)
            return

    async def _listen(self, guard: subprocess.Popen[bytes]) -> None:
        assert guard.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), guard.stdout
        )
        try:
            async for line in reader:
                self._heard(json.loads(line))
        finally:
            transport.close()

    def _heard(self, event: dict[str, float | None]) -> None:
        code, again, late = event.get("ended"), event.get("again"), event.get("late")
        if late is not None:
            self.tell(f"{self.url} isn't ready {late:g} s after it was started again, and is killed")
        if code is None:
            return
        if again is None:
            self.ended = int(code)
            self._over.set()
        else:
            self.tell(
                f"{self.url} {how(int(code))}, and is started again in {again:g} s; "
                f"its log: {self.recipe.shown_path(self.log)}"
            )

    async def _force(self) -> None:
        """Kill a guard that is no use, and every process of the server."""
        if self._guard is not None:
            if self._guard.poll() is None:
                self._guard.kill()
            await asyncio.to_thread(self._guard.wait)
            _close(self._guard)
        await asyncio.to_thread(kill_marked, self.token)

    def _end_of_log(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.last_words(TAIL))
        return f"; the end of {self.recipe.shown_path(self.log)}:{lines}"


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + _HEALTH, allow_redirects=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False  # It doesn't listen yet.


def how(code: int) -> str:
    """Return how a process ended: `ended with exit code 1`, `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed by {known.get(-code, f'signal {-code}')}"


def kill_marked(token: str) -> None:
    """Kill every process that has a server's token in its environment.

    Returns when all are gone, or after a while, as a process that hangs in a driver can't be killed.
    """
    deadline = time.monotonic() + LATE
    killed: set[int] = set()
    while time.monotonic() < deadline:
        found = marked(token)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # One that is dying has lost its environment already.
        killed.update(found)
        if not found and not any(is_alive(stat(pid)) for pid in killed):
            return
        time.sleep(_KILL_POLL)


def marked(token: str) -> list[int]:
    """Return the processes that have a server's token in their environment and aren't dead."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        # Of a process that ended meanwhile nothing can be read, nor of other people's.
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _write(guard: subprocess.Popen[bytes], word: bytes) -> None:
    assert guard.stdin is not None
    # A guard that is gone hears nothing; that it is gone, its follower finds out.
    with suppress(BrokenPipeError):
        guard.stdin.write(word)


def _close(guard: subprocess.Popen[bytes]) -> None:
    for pipe in (guard.stdin, guard.stdout):
        if pipe is not None:
            pipe.close()
