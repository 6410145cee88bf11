"""The servers of one engine that fafo starts itself, from start to stop. One alone is `launch_server`'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from fafo_run.engines.launch_ports import free_ports
from fafo_run.engines.launch_recipe import Recipe
from fafo_run.engines.launch_server import Launched, Tell, unheard

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL. A server drains after SIGTERM, which can hang."""
HEALTH = 30.0
"""Seconds for a question whether a server is ready. A busy one takes up to 20."""
PROGRESS = 15.0
"""Seconds between two words about servers that aren't ready yet."""
PORTS = 3
"""How often a server that found its port taken is given another one."""


class Servers:
    """Used from one event loop."""

    def __init__(self, recipe: Recipe, logs: Path, tell: Tell, *, grace: float = GRACE) -> None:
        """Start nothing yet.

        `logs` is the folder of the servers' logs, `PORT.log` each, which are appended to. `tell` is called
        with a line for people when a server dies. `grace` is in seconds.
        """
        self._recipe = recipe
        self._logs = logs
        self._tell = tell
        self._grace = grace
        self._gpus: tuple[str, ...] | None = None
        self._servers: list[Launched] = []

    async def start(
        self,
        progress: Tell,
        *,
        replicas: Sequence[int] | None = None,
        begun: Callable[[Launched], None] | None = None,
        waits: Tell = unheard,
        ports: Mapping[int, int] | None = None,
    ) -> tuple[str, ...]:
        """Start the servers and return their URLs when all are ready.

        `progress` is called with lines for people meanwhile. `replicas` are the numbers of those to start,
        all where it isn't given. `begun` is called with each one as soon as it is started, `waits` with what
        is waited for, as often as it changes, and with nothing in the end. `ports` are those that they had
        the last time, by number: they have them again where they are free and none is declared.

        Raises `EngineError` when one can't be started, dies before it is ready, or isn't ready in time. Then,
        and when this is cancelled, none is left running.
        """
        numbers = range(self._recipe.launch.replicas) if replicas is None else replicas
        self._gpus = self._recipe.visible_gpus()
        self._recipe.check(self._gpus)
        try:
            self._make_folder()
            for replica, port in self._ports_again(numbers, ports or {}).items():
                self._servers.append(self._server(replica, port))
            progress(f"starting {_named(self._servers)}; logs in {self._recipe.shown_path(self._logs)}")
            await self._all_ready(progress, begun, waits)
        except BaseException:
            await self.stop()
            raise
        return tuple(server.url for server in self._servers)

    async def stop(self) -> None:
        """End all servers with all their processes: SIGTERM, and after the grace time SIGKILL.

        Safe to call twice, and after a failed start.
        """
        servers, self._servers = self._servers, []
        for server in servers:
            server.ask_to_end()
        await asyncio.gather(*(server.ends() for server in servers))

    async def release(self) -> None:
        """Let the servers go on without this process. They are still started again when they die."""
        servers, self._servers = self._servers, []
        for server in servers:
            await server.release()

    def _make_folder(self) -> None:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._recipe.error(
                f"no folder for logs: {self._logs}: {error.strerror}", "see to the disk, and to what is there"
            ) from error

    def _ports_again(self, numbers: Sequence[int], last: Mapping[int, int]) -> dict[int, int]:
        """Return a port for each server of these numbers, the last one where it can be."""
        found: dict[int, int] = {}
        for number in numbers:
            port = None if self._recipe.launch.port else last.get(number)
            if port is not None and port not in found.values() and self._is_free(port):
                found[number] = port
        others = [number for number in numbers if number not in found]
        fresh = self._ports(len(others), without=tuple(found.values()))
        found |= zip(others, fresh, strict=True)
        return {number: found[number] for number in numbers}

    def _is_free(self, port: int) -> bool:
        try:
            return free_ports(self._recipe.host, 1, port) == [port]
        except OSError:
            return False  # What is wrong with all ports, `_ports` says.

    def _ports(self, count: int, *, without: Sequence[int] = ()) -> list[int]:
        host, others = self._recipe.host, [server.port for server in self._servers]
        try:
            return free_ports(host, count, self._recipe.launch.port, without=(*others, *without))
        except OSError as error:
            raise self._recipe.error(
                f"no port for a server at {host}: {error.strerror or error}",
                "give another port, or take --host out of args",
            ) from error

    def _server(self, replica: int, port: int) -> Launched:
        return Launched(
            recipe=self._recipe,
            replica=replica,
            port=port,
            gpus=self._recipe.share(self._gpus, replica),
            log=self._logs / f"{port}.log",
            grace=self._grace,
            tell=self._tell,
        )

    async def _all_ready(self, progress: Tell, begun: Callable[[Launched], None] | None, waits: Tell) -> None:
        limit = aiohttp.ClientTimeout(total=HEALTH)
        async with aiohttp.ClientSession(timeout=limit) as session:
            tasks = [asyncio.create_task(self._ready(at, session, begun)) for at in self._servers]
            beats = asyncio.create_task(self._beat(progress))
            try:
                for left, done in zip(range(len(tasks), 0, -1), asyncio.as_completed(tasks), strict=True):
                    waits(f"waiting for {left} of {len(tasks)} servers to load")
                    server = await done
                    progress(f"{server.url} is ready after {time.monotonic() - server.began:.0f} s")
            finally:
                for task in (*tasks, beats):
                    task.cancel()
                await asyncio.gather(*tasks, beats, return_exceptions=True)
        waits("")

    async def _ready(
        self, server: Launched, session: aiohttp.ClientSession, begun: Callable[[Launched], None] | None
    ) -> Launched:
        """Start a server and return it when it is ready. Raises `EngineError` when it isn't to be."""
        tries = 0
        while True:
            tries += 1
            server.begin()
            if begun is not None:
                begun(server)
            if await server.until_ready(session):
                return server
            if tries == PORTS or self._is_free(server.port):
                raise server.died()
            # Somebody took its port between our look and its own.
            (port,) = self._ports(1)
            fresh = self._server(server.replica, port)
            self._servers[self._servers.index(server)] = fresh
            server = fresh

    async def _beat(self, progress: Tell) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS)
            waiting = [server for server in self._servers if not server.ready]
            if waiting:
                words = "".join(waiting[0].last_words())
                progress(f"{_named(waiting)}: not ready after {time.monotonic() - began:.0f} s: {words}")


def _named(servers: Sequence[Launched]) -> str:
    ports = ", ".join(str(server.port) for server in servers)
    return f"1 server (port {ports})" if len(servers) == 1 else f"{len(servers)} servers (ports {ports})"
