"""A declared model as tokenizing needs it: tokenizer, chat template, config and what they were read from.

It needs no torch and reads no weights. Where the files are is `resolve`'s business, how a GGUF's metadata
becomes a tokenizer that of `gguf_tokenizer`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from fafo_build.errors import ModelError, Problem
from fafo_build.project.declaration import Model
from fafo_build.tokens import gguf_config, gguf_tokenizer
from fafo_build.tokens.gguf_file import head_sha256, read_gguf
from fafo_build.tokens.resolve import TOKENIZER_FILES, Location, resolve

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_READ_SENTENCEPIECE = ("sentencepiece", "protobuf")
"""The packages with which transformers reads these."""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


@frozen
class LoadedModel:
    """What a model is, without its weights."""

    tokenizer: PreTrainedTokenizerFast
    """A fast tokenizer, with its special tokens and `chat_template` set."""
    config: Mapping[str, Any]
    """config.json."""
    name: str
    """The declared path."""
    revision: str | None
    """As declared."""
    config_sha256: str
    """64 hex digits; of `config` as canonical JSON (RFC 8785)."""
    context_length: int
    """Prompt and output together, in tokens."""
    vocab_size: int
    """Ids are valid from 0 to this, exclusive."""
    eos_ids: tuple[int, ...]
    """The ids that end an output, rising."""
    chat_template: str | None
    """The model's own, or the project's file that replaces it; None if there is neither."""
    tool_template: str | None
    """The model's own for conversations with tools, where it has another one for them."""
    inputs: Mapping[str, str]
    """What was read: name (no machine's path in it) to sha256, as `input_hashes` returns it."""


def load_model(model: Model, root: Path) -> LoadedModel:
    """Read the tokenizer, chat template and config of `model`; relative paths start at `root`.

    Raises `ModelError` when something isn't there, can't be read, isn't a fast tokenizer, or doesn't say
    what a run must know (context length, vocabulary).
    """
    location = resolve(model, root)
    # transformers says at its import that torch isn't there, which a build doesn't need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if location.kind == "gguf":
        tokenizer, config, ends = _from_gguf(location)
    else:
        tokenizer, config, ends = _from_folder(location, model)
    template, tool_template = _chat_templates(tokenizer, model, root)
    tokenizer.chat_template = template
    return LoadedModel(
        tokenizer=tokenizer,
        config=config,
        name=model.path,
        revision=model.revision,
        config_sha256=config_sha256(config),
        context_length=context_length(config, location.shown),
        vocab_size=vocab_size(config, location.shown),
        eos_ids=ends,
        chat_template=template,
        tool_template=tool_template,
        inputs=_hash_inputs(location, model, root),
    )


def input_hashes(model: Model, root: Path) -> dict[str, str]:
    """Return the name and sha256 of everything that `load_model` would read, without reading meaning into it.

    Of a GGUF only what precedes the weights is hashed: `FILE.gguf#head`. Raises `ModelError` as `load_model`
    does for files that aren't there.
    """
    return _hash_inputs(resolve(model, root), model, root)


def config_sha256(config: Mapping[str, Any]) -> str:
    """Return the 64 hex digits that name a config.json, however it is laid out."""
    import rfc8785

    return hashlib.sha256(rfc8785.dumps(dict(config))).hexdigest()


def context_length(config: Mapping[str, Any], shown: str) -> int:
    """Return how many tokens the model's positions reach; raises `ModelError` if config.json doesn't say."""
    return _number(config, _CONTEXT_KEYS, "how long its context is", shown)


def vocab_size(config: Mapping[str, Any], shown: str) -> int:
    """Return how many ids the model knows; raises `ModelError` if config.json doesn't say."""
    return _number(config, ("vocab_size",), "how large its vocabulary is", shown)


def eos_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ids that end an output: generation_config.json's, else config.json's."""
    declared = generation_config.get("eos_token_id", config.get("eos_token_id"))
    if declared is None:
        return ()
    return tuple(sorted(set(declared if isinstance(declared, list) else [declared])))


def folder_eos_ids(folder: Path, shown: str) -> tuple[int, ...]:
    """Return the ids that end an output of the model in `folder`, rising.

    They are generation_config.json's, else config.json's; and the tokenizer's own end, which chat models
    often name only there.
    """
    config = read_json(folder / "config.json", shown)
    ends = set(eos_ids(config, read_json(folder / "generation_config.json", shown)))
    settings = read_json(folder / "tokenizer_config.json", shown)
    token = settings.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None:
        added = read_json(folder / "tokenizer.json", shown).get("added_tokens", [])
        listed = settings.get("added_tokens_decoder", {})
        ends |= {entry["id"] for entry in added if entry["content"] == text}
        ends |= {int(number) for number, entry in listed.items() if entry["content"] == text}
    return tuple(sorted(ends))


def read_json(path: Path, shown: str) -> dict[str, Any]:
    """Return the JSON object in a model's file, or an empty one if there is no such file.

    Raises `ModelError` when it can't be read or isn't a JSON object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _error(f"{path.name} of {shown} can't be read: {error}", "download the model again") from error
    if not isinstance(content, dict):
        raise _error(f"{path.name} of {shown} isn't a JSON object", "download the model again")
    return content


def _from_gguf(location: Location) -> tuple[PreTrainedTokenizerFast, dict[str, Any], tuple[int, ...]]:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    gguf = read_gguf(location.path, location.shown)
    config = gguf_config.config(gguf, location.shown)
    content = gguf_tokenizer.tokenizer_json(gguf, location.shown)
    settings = gguf_tokenizer.tokenizer_config(gguf, location.shown)
    settings.pop("tokenizer_class")
    core = Tokenizer.from_str(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **settings)  # type: ignore[no-untyped-call]
    return tokenizer, config, eos_ids(config, gguf_config.generation_config(gguf))


def _from_folder(
    location: Location, model: Model
) -> tuple[PreTrainedTokenizerFast, dict[str, Any], tuple[int, ...]]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = read_json(location.path / "config.json", location.shown)
    _check_conversion(location)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            location.path, local_files_only=True, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise _error(
            f"transformers can't load the tokenizer of {location.shown}: {error}",
            "check tokenizer.json and tokenizer_config.json in the model's folder",
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise _error(
            f"the tokenizer of {location.shown} ({type(tokenizer).__name__}) is written in Python only",
            "use a model that has a tokenizer.json: fafo needs a tokenizer of the `tokenizers` library",
        )
    return tokenizer, config, folder_eos_ids(location.path, location.shown)


def _check_conversion(location: Location) -> None:
    """Raise `ModelError` where the tokenizer must be converted, and the packages for that aren't there."""
    if (location.path / "tokenizer.json").is_file():
        return
    missing = [package for package in _READ_SENTENCEPIECE if not _installed(package)]
    for name in _SENTENCEPIECE_FILES:
        if missing and (location.path / name).is_file():
            raise _error(
                f"the tokenizer of {location.shown} is only there as {name}, and converting it takes "
                + " and ".join(missing),
                "pip install 'fafo[sentencepiece]', or add the model's tokenizer.json to the folder",
            )


def _installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _chat_templates(
    tokenizer: PreTrainedTokenizerFast, model: Model, root: Path
) -> tuple[str | None, str | None]:
    """Return the chat template, and the one for conversations with tools if that is another."""
    if model.chat_template is not None:
        return _own_template(model.chat_template, root).decode("utf-8"), None
    template: Any = tokenizer.chat_template
    if isinstance(template, dict):
        return template.get("default"), template.get("tool_use")
    return template or None, None


def _own_template(declared: str, root: Path) -> bytes:
    try:
        content = (root / declared).read_bytes()
        content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise ModelError(
            Problem(
                f'the chat template "{declared}" can\'t be read: {why}',
                field="model.chat_template",
                cure="name a Jinja file in the project",
            )
        ) from error
    return content


def _hash_inputs(location: Location, model: Model, root: Path) -> dict[str, str]:
    hashes: dict[str, str] = {}
    if location.kind == "gguf":
        head = read_gguf(location.path, location.shown, arrays=False)
        hashes[f"{location.shown}#head"] = head_sha256(head)
    else:
        files = [location.path / name for name in TOKENIZER_FILES]
        files += (location.path / "additional_chat_templates").glob("*.jinja")
        files += location.path.rglob("*.py") if model.trust_remote_code else ()
        for file in files:
            if file.is_file():
                name = f"{location.shown}/{file.relative_to(location.path).as_posix()}"
                hashes[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    if model.chat_template is not None:
        content = _own_template(model.chat_template, root)
        hashes[model.chat_template] = hashlib.sha256(content).hexdigest()
    return dict(sorted(hashes.items()))


def _number(config: Mapping[str, Any], keys: tuple[str, ...], what: str, shown: str) -> int:
    # Models that also see or hear keep the numbers of their language part in `text_config`.
    for part in (config, config.get("text_config") or {}):
        for key in keys:
            value = part.get(key)
            if isinstance(value, int) and value > 0:
                return value
    raise _error(f"config.json of {shown} doesn't say {what}", f'add "{keys[0]}" to it')


def _error(message: str, cure: str) -> ModelError:
    return ModelError(Problem(message, field="model.path", cure=cure))
