"""A declared model as a folder that transformers or a server can load, converting a GGUF once.

Converted models lie in a cache of the user's, named by what they were made from; a folder there is whole,
or it isn't there. How the weights are converted is `weights_gguf`'s business.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fafo_build.errors import ModelError, Problem
from fafo_build.project.declaration import Model
from fafo_build.tokens import gguf_config, gguf_tokenizer
from fafo_build.tokens.gguf_file import GgufFile, read_gguf
from fafo_build.tokens.resolve import Location, resolve
from fafo_run.engines.weights_gguf import Progress, write_safetensors

CONVERTER = 1
"""Version of the conversion: changes whenever the same GGUF would give another folder."""


def cache_folder() -> Path:
    """Return where converted models are kept: `$FAFO_CACHE`, else `fafo` in the user's cache folder."""
    if chosen := os.environ.get("FAFO_CACHE"):
        return Path(chosen).absolute() / "models"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fafo" / "models"


def model_folder(model: Model, root: Path, progress: Progress | None = None) -> Path:
    """Return a folder in the Hugging Face format, with weights; relative paths start at `root`.

    A local folder is returned as it is, a hub id's is downloaded if need be. A `.gguf` is converted on the
    first call and found on every later one; `progress` is told about it, and without it a bar is drawn on
    stderr. Any number of processes may ask at once, and one of them converts.

    Raises `ModelError` for a path that leads nowhere, for what can't be converted, and when the disk refuses.
    """
    location = resolve(model, root, weights=True)
    return _converted(location, progress) if location.kind == "gguf" else location.path


def _converted(location: Location, progress: Progress | None) -> Path:
    from filelock import FileLock

    cache = cache_folder()
    try:
        with location.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        folder = cache / f"{digest[:32]}-{CONVERTER}"
        # A folder gets its name when it is whole, so that finding it needs no lock.
        if folder.is_dir():
            return folder
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _convert(location, folder, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _error(
                f"the disk is full: {location.shown} can't be converted in {cache}",
                "make room there, or set FAFO_CACHE to a folder on another disk",
            ) from error
        raise _error(
            f"{location.shown} can't be converted in {cache}: {error.strerror or error}",
            "set FAFO_CACHE to a folder that you can write to",
        ) from error
    return folder


def _convert(location: Location, folder: Path, progress: Progress | None) -> None:
    """Make `folder`, under the lock: beside it first, synced, then renamed."""
    for left_over in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(left_over)
    gguf = read_gguf(location.path, location.shown)
    config = gguf_config.config(gguf, location.shown)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        for name, content in _json_files(gguf, config, location.shown).items():
            _write_json(work / name, content)
        with _shown(progress, location.shown) as told:
            write_safetensors(work / "model.safetensors", gguf, config, location.shown, told)
        work.chmod(0o755)
        _sync_folder(work)
        work.rename(folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _json_files(gguf: GgufFile, config: dict[str, Any], shown: str) -> dict[str, dict[str, Any]]:
    return {
        "config.json": config,
        "generation_config.json": gguf_config.generation_config(gguf),
        "tokenizer.json": gguf_tokenizer.tokenizer_json(gguf, shown),
        "tokenizer_config.json": gguf_tokenizer.tokenizer_config(gguf, shown),
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _shown(progress: Progress | None, shown: str) -> Iterator[Progress]:
    """Give the caller's own progress, or one that draws a bar on stderr."""
    if progress is not None:
        yield progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(f"converting {Path(shown).name} to bf16, once", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _error(message: str, cure: str) -> ModelError:
    return ModelError(Problem(message, field="model.path", cure=cure))
