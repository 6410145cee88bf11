"""Mounts a file system for a test, or skips the test where that isn't possible."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounting(path: Path, *arguments: str) -> Iterator[Path]:
    """Mount at `path`, with the arguments of mount(8), and unmount at the end."""
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
