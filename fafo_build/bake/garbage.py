"""Files of the build folder that nothing uses any more. What uses an artifact is said by the caller."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from attrs import frozen

from fafo_build.bake import store
from fafo_build.bake.lock import Lock
from fafo_build.errors import BakeError, Problem

_NAME = re.compile(r"[0-9a-f]{64}\.json")


@frozen
class Garbage:
    """One file that nothing uses."""

    file: str
    """As seen from build/: `artifacts/HASH.json`."""
    bytes: int


def find_garbage(build: Path, artifacts: Collection[str], lock: Lock) -> tuple[Garbage, ...]:
    """Return what is in build/ beside these artifacts, their tokenizers, and the tokenizers of the lock.

    Files whose names aren't a build's are left out. Raises `BakeError` when an artifact that is used can't be
    read: then nobody knows which tokenizer it needs.
    """
    tokenizers = {model.tokenizer for model in lock.models.values()}
    tokenizers |= {_tokenizer_of(build, made) for made in artifacts if _is_there(build, made)}
    folders = (("artifacts", artifacts), ("tokenizers", tokenizers))
    return tuple(found for folder, used in folders for found in _unused(build, folder, used))


def collect(build: Path, garbage: Collection[Garbage]) -> None:
    """Remove the files. Raises `BakeError`; what was removed until then was of no use to anybody."""
    for found in garbage:
        path = build / found.file
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise store.refused(path, error) from error


def _unused(build: Path, folder: str, used: Collection[str]) -> Iterator[Garbage]:
    for path in sorted((build / folder).glob("*.json")):
        if _NAME.fullmatch(path.name) and path.stem not in used:
            yield Garbage(f"{folder}/{path.name}", path.stat().st_size)


def _is_there(build: Path, artifact: str) -> bool:
    return store.artifact_path(build, artifact).exists()


def _tokenizer_of(build: Path, artifact: str) -> str:
    """Return the hash of the tokenizer of an artifact of any format: each has had it under this key."""
    path = store.artifact_path(build, artifact)
    content = json.loads(store.read_named(path, artifact))
    tokenizer = content.get("tokenizer") if isinstance(content, dict) else None
    if not isinstance(tokenizer, str):
        raise BakeError(
            Problem(
                "this artifact is used, and doesn't say which tokenizer it needs; nothing was dropped",
                file=f"{build.name}/artifacts/{path.name}",
                cure="collect with the version of fafo that wrote it",
            )
        )
    return tokenizer
