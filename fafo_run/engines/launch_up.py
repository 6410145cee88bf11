"""The servers that are up: that outlive the command that started them. A folder of the project knows of them.

One file for each, with the guard's process number and what else it takes never to mistake another process for
it. A file whose guard is gone means nothing. Another file for each engine has the ports that its servers had
last.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from fafo_build.errors import EngineError, Problem
from fafo_run.engines.launch import GRACE, Servers
from fafo_run.engines.launch_guard import descendants, is_alive, stat
from fafo_run.engines.launch_recipe import Recipe
from fafo_run.engines.launch_server import LATE, Launched, Tell, kill_marked
from fafo_run.log.locking import boot_id

FOLDER = ".servers"
"""In the folder of the runs; no run can have this name."""


class Up(msgspec.Struct, frozen=True):
    """One server that is up, or not yet ready, or being started again by its guard."""

    engine: str
    """The engine's name."""
    replica: int
    """Its number, from 0."""
    url: str
    model: str
    """The folder that it has loaded."""
    since: float
    """Seconds since the epoch: when its guard was started."""
    log: str
    token: str
    """What its processes have in their environment."""
    settings: str
    """`Recipe.settings`: what it was started with."""
    guard: int
    """The guard's process number."""
    ticks: int
    """When the guard was started, in clock ticks since the machine's start."""
    boot: str
    """Which start of the machine that was."""

    def alive(self) -> bool:
        """Whether its guard is there."""
        found = stat(self.guard)
        same = found is not None and found.started == self.ticks and self.boot == boot_id()
        return same and is_alive(found)

    def pid(self) -> int | None:
        """Return the server's own process number; None while it is dead."""
        below = ((pid, stat(pid)) for pid in descendants(self.guard))
        # What else is the guard's child now has lost its parent, and was born later.
        mine = [(found.started, pid) for pid, found in below if found is not None and found.session == pid]
        return min(mine)[1] if mine else None


class UpFolder:
    """Knows which servers of a project are up."""

    def __init__(self, runs: Path) -> None:
        """`runs` is the folder of the project's runs."""
        self.folder = runs / FOLDER

    def read(self, engine: str | None = None) -> list[Up]:
        """Return the servers that are up, of one engine or of all.

        Raises `EngineError` when the folder can't be read.
        """
        return [up for up in self._known(engine) if up.alive()]

    async def start(self, recipe: Recipe, progress: Tell) -> list[Up]:
        """Start those servers of a recipe that aren't up yet, wait until they are ready, and let them go on.

        Returns all of them. Raises `EngineError` as `Servers.start` does, and when some are up with other
        settings.
        """
        with self._locked():
            self._forget_dead()
            there = self.read(recipe.engine)
            if any(up.settings != recipe.settings for up in there):
                raise recipe.error(
                    "servers of this engine are up with other settings",
                    "`fafo engine down`, then up again, when nothing uses them any more",
                )
            replicas = range(recipe.launch.replicas)
            missing = [number for number in replicas if number not in {up.replica for up in there}]
            if missing:
                servers = Servers(recipe, self.folder, progress)
                ports = self._ports(recipe.engine)
                await servers.start(
                    progress, replicas=missing, begun=lambda server: self._note(recipe, server), ports=ports
                )
                await servers.release()
            return self.read(recipe.engine)

    def stop(self, engine: str | None = None) -> list[Up]:
        """End the servers of one engine, or of all, with all their processes; return which there were.

        Raises `EngineError` when the folder can't be read or written.
        """
        with self._locked():
            self._forget_dead()
            chosen = self.read(engine)
            for up in chosen:
                _signal(up, signal.SIGTERM)
            deadline = time.monotonic() + GRACE + LATE
            for up in chosen:
                if not _gone(up, deadline):
                    _signal(up, signal.SIGKILL)
                # Nothing is left to kill, unless the guard was killed itself.
                kill_marked(up.token)
                self._file(up).unlink(missing_ok=True)
            return chosen

    def _forget_dead(self) -> None:
        """Forget servers whose guards are gone, and end what an untimely end of a guard has left."""
        for up in self._known(None):
            if not up.alive():
                kill_marked(up.token)
                self._file(up).unlink(missing_ok=True)

    def _known(self, engine: str | None) -> list[Up]:
        try:
            found = [self._decoded(file) for file in self.folder.glob("*.json")]
        except OSError as error:
            raise self._refused(error) from error
        known = [up for up in found if up is not None and engine in (None, up.engine)]
        return sorted(known, key=lambda up: (up.engine, up.replica))

    def _file(self, up: Up) -> Path:
        return self.folder / f"{up.engine}-{up.replica}.json"

    def _note(self, recipe: Recipe, server: Launched) -> None:
        """Know a server from now on, and its port for the next time."""
        self._write(self._file(up := _up(recipe, server)), up)
        ports = self._ports(recipe.engine) | {server.replica: server.port}
        self._write(self._ports_file(recipe.engine), ports)

    def _ports(self, engine: str) -> dict[int, int]:
        """Return the ports that servers of an engine had the last time, by number."""
        try:
            return msgspec.json.decode(self._ports_file(engine).read_bytes(), type=dict[int, int])
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}  # They only spare a run that waits for them there to wait for ever.
        except OSError as error:
            raise self._refused(error) from error

    def _ports_file(self, engine: str) -> Path:
        return self.folder / f"{engine}.ports"

    def _write(self, file: Path, content: object) -> None:
        part = file.with_suffix(".part")
        try:
            part.write_bytes(msgspec.json.encode(content))
            part.replace(file)
        except OSError as error:
            raise self._refused(error) from error

    @staticmethod
    def _decoded(file: Path) -> Up | None:
        try:
            return msgspec.json.decode(file.read_bytes(), type=Up)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None  # Forgotten by somebody else just now, or of another version of fafo.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / "up.lock", timeout=0):
                yield
        except Timeout as error:
            raise EngineError(
                Problem(
                    "another `fafo engine up` or `down` is at work in this project",
                    cure="wait until it has ended",
                )
            ) from error

    def _refused(self, error: OSError) -> EngineError:
        return EngineError(
            Problem(f"{error.filename or self.folder}: {error.strerror}", cure="see to the disk")
        )


def _up(recipe: Recipe, server: Launched) -> Up:
    found = stat(server.guard)
    return Up(
        engine=recipe.engine,
        replica=server.replica,
        url=server.url,
        model=str(recipe.model),
        since=time.time(),
        log=str(server.log),
        token=server.token,
        settings=recipe.settings,
        guard=server.guard,
        ticks=found.started if found is not None else 0,
        boot=boot_id(),
    )


def _signal(up: Up, number: signal.Signals) -> None:
    """Send a signal to a guard, and to no other process that has come to have its number."""
    with _handle(up) as handle:
        if handle is not None:
            # It may have ended since.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)


def _gone(up: Up, deadline: float) -> bool:
    """Return whether a guard has ended by the deadline, on the monotonic clock."""
    with _handle(up) as handle:
        if handle is None:
            return True
        ended, _, _ = select.select([handle], (), (), max(0.0, deadline - time.monotonic()))
        return bool(ended)


@contextmanager
def _handle(up: Up) -> Iterator[int | None]:
    """Give what names the guard's process and no other, None when it is gone."""
    try:
        handle = os.pidfd_open(up.guard)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise
        yield None
        return
    try:
        yield handle if up.alive() else None
    finally:
        os.close(handle)
