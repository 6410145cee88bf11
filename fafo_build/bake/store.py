"""Files of the build folder: written whole or not at all, checked against their names when read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fafo_build.bake.artifact import Artifact, decoded
from fafo_build.bake.canonical import sha256
from fafo_build.errors import BakeError, Problem

REBUILD = "run `fafo build`"
_WRITING = ".writing-"
"""How names of files begin that aren't whole yet."""


def artifact_path(build: Path, artifact: str) -> Path:
    """Return where the artifact of that hash is."""
    return build / "artifacts" / f"{artifact}.json"


def tokenizer_path(build: Path, tokenizer: str) -> Path:
    """Return where the tokenizer of that hash is."""
    return build / "tokenizers" / f"{tokenizer}.json"


class OtherFormatError(BakeError):
    """An artifact that another version of fafo wrote."""


def read_artifact(build: Path, artifact: str) -> Artifact:
    """Return an artifact. Raises `BakeError` when it is absent or damaged, `OtherFormatError` when it is of
    another format.
    """
    path = artifact_path(build, artifact)
    content = read_named(path, artifact)
    try:
        return decoded(content)
    except (ValueError, TypeError, LookupError) as error:
        raise OtherFormatError(
            Problem(
                f"the artifact {artifact[:8]} is of another version of fafo: {error}",
                file=f"{build.name}/artifacts/{path.name}",
                cure="use the version that wrote it, or " + REBUILD,
            )
        ) from error


def read_named(path: Path, digest: str) -> bytes:
    """Return the content of a file whose name is its sha256. Raises `BakeError` when it is absent or
    damaged.
    """
    shown = "/".join(path.parts[-3:])
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise BakeError(Problem("this file of the build is missing", file=shown, cure=REBUILD)) from error
    except OSError as error:
        raise BakeError(Problem(f"can't be read: {error.strerror}", file=shown)) from error
    if sha256(content) != digest:
        raise BakeError(
            Problem("the file is damaged: its content isn't what its name says", file=shown, cure=REBUILD)
        )
    return content


def is_whole(path: Path, digest: str) -> bool:
    """Tell whether a file is there and its content is what its name says."""
    try:
        read_named(path, digest)
    except BakeError:
        return False
    return True


def sweep(build: Path) -> None:
    """Remove what writers left behind that were killed. The caller holds the build's lock, so none is alive.

    Raises `BakeError`.
    """
    for folder in (build, build / "artifacts", build / "tokenizers"):
        for left in folder.glob(_WRITING + "*"):
            try:
                left.unlink()
            except OSError as error:
                raise refused(left, error) from error


def refused(path: Path, error: OSError) -> BakeError:
    """Return what the system said to a change of a file of the build, and what to do about it."""
    return BakeError(
        Problem(
            f"can't be written: {error.strerror}",
            file="/".join(path.parts[-3:]),
            cure="make room or mend the permissions, then " + REBUILD,
        )
    )


def write(path: Path, content: bytes) -> None:
    """Write a file so that after any crash it is either as before or whole. Raises `BakeError`."""
    write_all({path: content})


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files so that after any crash each is either as before or whole. Raises `BakeError`.

    They are synced when all are written: what a disk gets together it writes together.
    """
    waiting: dict[Path, Path] = {}
    try:
        for path, content in files.items():
            with _refusals(path):
                waiting[path] = _temporary(path, content)
        for path, temporary in waiting.items():
            with _refusals(path):
                _sync(temporary)
        for path in files:
            with _refusals(path):
                waiting[path].replace(path)
            del waiting[path]
    finally:
        for temporary in waiting.values():
            temporary.unlink(missing_ok=True)
    for folder, path in {path.parent: path for path in files}.items():
        with _refusals(path):
            _sync(folder)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(path, error) from error


def _temporary(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files that only their owner can read, whatever the umask says.
        temporary.chmod(0o644)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
