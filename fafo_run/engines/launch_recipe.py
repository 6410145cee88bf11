"""How a server is started: its command, its environment, its share of the GPUs. Starts none."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from attrs import evolve, field, frozen

from fafo_build.errors import EngineError, Problem
from fafo_build.project.declaration import Engine, Launch
from fafo_run.engines.sglang import api_key

TOKEN = "FAFO_SERVER"
"""The environment variable by which a server's processes are known: they hand it down to those they start."""

_LOCAL = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICE = re.compile(r"nvidia[0-9]+")
_LIST_GPUS = ("nvidia-smi", "--list-gpus")

_DEFAULTS: Mapping[str, Sequence[str]] = {
    # What `fafo verify` compares its own count with.
    "--enable-metrics": (),
    # One line in the log for each request would be gigabytes a night.
    "--log-level-http": ("warning",),
}
"""Flags that every server gets, unless the declaration has them."""


@frozen
class Recipe:
    """How the servers of one engine are started."""

    engine: str
    """The engine's name."""
    launch: Launch
    model: Path
    """A folder that servers can load."""
    trust_remote_code: bool
    root: Path
    """The project's folder, in which they are run."""
    key: str | None = field(repr=False)
    """The API key that the servers are to want."""

    def check(self, gpus: Sequence[str] | None) -> None:
        """Raise `EngineError` when it can be told without a start that no server would come of it.

        `gpus` are the visible ones, as of `visible_gpus`.
        """
        launch = self.launch
        if not launch.command and launch.python is None and find_spec("sglang") is None:
            raise self.error(
                "the package sglang isn't installed beside fafo",
                "pip install 'fafo[sglang]', or name the Python that has it: launch = { python = \"...\" }",
            )
        wanted = launch.replicas * launch.gpus
        if not wanted:
            return
        if gpus is None:
            raise self.error(
                f"no GPU is found, and the servers need {wanted}",
                f"name them in {_VISIBLE}, or write gpus = 0: then the servers take what they find",
                "launch.gpus",
            )
        if len(gpus) < wanted:
            raise self.error(
                f"{launch.replicas} times {launch.gpus} GPUs are needed, and {len(gpus)} are visible",
                f"lower replicas or gpus, or see to {_VISIBLE}",
                "launch.gpus",
            )

    def command(self, port: int) -> list[str]:
        """Return the words that start a server; the API key is among them, so show `shown` to people."""
        start = self.launch.command or (self.launch.python or sys.executable, "-m", "sglang.launch_server")
        words = [*start, "--model-path", str(self.model), "--host", _LOCAL, "--port", str(port)]
        if self.trust_remote_code:
            words.append("--trust-remote-code")
        for flag, values in _DEFAULTS.items():
            if not any(word.partition("=")[0] == flag for word in self.launch.args):
                words += [flag, *values]
        words += ["--api-key", self.key] if self.key else []
        return [*words, *self.launch.args]

    @property
    def is_below(self) -> bool:
        """Whether a server runs below its guard: `command` may start it elsewhere, in a container perhaps."""
        return not self.launch.command

    def shown(self, port: int) -> str:
        """Return the command as a line for logs: without the API key."""
        return " ".join("***" if self.key and word == self.key else word for word in self.command(port))

    def environment(self, share: str | None, token: str) -> dict[str, str]:
        """Return a server's environment. `share` is what it may see of the GPUs, None for what fafo sees."""
        env = {**os.environ, **self.launch.env, TOKEN: token}
        if share is not None:
            env[_VISIBLE] = share
        if not self.launch.command:
            # Run in the project's folder, it would take that folder's files for modules.
            env.setdefault("PYTHONSAFEPATH", "1")
        return env

    @property
    def settings(self) -> str:
        """What decides how a server behaves, as a short hash: to see whether it is another than before."""
        one = evolve(self.launch, replicas=1, port=None, start_within=0.0)
        said = repr((one, self.model, self.trust_remote_code, self.key is None))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def share(self, gpus: Sequence[str] | None, replica: int) -> str | None:
        """Return which GPUs the server of this number, from 0, may see."""
        count = self.launch.gpus
        return ",".join((gpus or ())[replica * count : (replica + 1) * count]) if count else None

    def visible_gpus(self) -> tuple[str, ...] | None:
        """Return the names of the GPUs to share out, as CUDA_VISIBLE_DEVICES has them; None for no GPU."""
        return visible_gpus({**os.environ, **self.launch.env}) if self.launch.gpus else None

    @property
    def host(self) -> str:
        """Where fafo reaches the servers."""
        args = self.launch.args
        named = [
            value if "=" in word else after
            for word, after in pairwise((*args, ""))
            for name, _, value in [word.partition("=")]
            if name == "--host"
        ]
        host = named[-1] if named else _LOCAL
        return _LOCAL if host in _EVERYWHERE else host

    def url(self, port: int) -> str:
        """Return the base URL of the server at this port."""
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"

    def shown_path(self, path: Path) -> str:
        """Return a path as people know it: as seen from the project's folder, where it is inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def error(self, message: str, cure: str, key: str = "launch") -> EngineError:
        """Return an error about this engine's declaration."""
        table = "engine" if self.engine == "default" else f"engines.{self.engine}"
        return EngineError(Problem(message, file="fafo.toml", field=f"{table}.{key}", cure=cure))


def recipe(engine: Engine, model: Path, *, root: Path, trust_remote_code: bool) -> Recipe:
    """Return how the servers of an engine with `launch` are started, for the model in the folder `model`.

    Raises `EngineError` when the variable of `api_key_env` holds no key.
    """
    assert engine.launch is not None
    return Recipe(engine.name, engine.launch, model, trust_remote_code, root, api_key(engine))


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the GPUs that a program with this environment sees; None when there is none."""
    named = env.get(_VISIBLE)
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip()) or None
    count = _listed_gpus()
    if count is None:
        count = sum(1 for entry in Path("/dev").iterdir() if _DEVICE.fullmatch(entry.name))
    return tuple(map(str, range(count))) or None


def _listed_gpus() -> int | None:
    """Return how many GPUs the driver's own tool lists; None when it can't tell."""
    if shutil.which(_LIST_GPUS[0]) is None:
        return None
    try:
        listed = subprocess.run(_LIST_GPUS, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return None
    lines = listed.stdout.splitlines() if listed.returncode == 0 else []
    return sum(1 for line in lines if line.startswith("GPU ")) or None
