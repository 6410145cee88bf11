"""Starting `tests/launched_server.py` in the place of a real server, and knowing what of it is alive."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fafo_run.engines.launch_guard import is_alive, stat

CHILD = Path(__file__).with_name("launched_server.py")
COMMAND = (sys.executable, "-I", "-S", str(CHILD))

Starts = Callable[[], list[dict[str, Any]]]
"""Returns what was started: `who`, `pid`, `argv` and `env` of each."""


def alive(pid: int) -> bool:
    return is_alive(stat(pid))


@contextmanager
def starts_in(folder: Path) -> Iterator[Starts]:
    """Give what says which processes were started; have none of them left, and fail if one is."""

    def read() -> list[dict[str, Any]]:
        file = folder / "starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    yield read
    left = [start["pid"] for start in read() if alive(start["pid"])]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
