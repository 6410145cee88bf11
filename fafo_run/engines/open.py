"""Picks the kind of engine that a project declares, and imports only that one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fafo_build.project import declaration
from fafo_run.engines.base import Engine


def open_engines(
    spec: declaration.Engine,
    model: declaration.Model,
    *,
    root: Path,
    vocab_size: int,
    context_length: int,
    eos_ids: Collection[int],
) -> list[Engine]:
    """Return the engines of `spec` for `model`, one per server, not started yet.

    `root` is the project's folder, against which a model's path is meant. `vocab_size` and `context_length`
    (tokens) and `eos_ids` are the model's own.

    Raises `EngineError` when a package is missing, and for servers that can't be meant.
    """
    match spec.kind:
        case "fake":
            from fafo_run.engines.fake import FakeEngine

            return [
                FakeEngine(
                    spec,
                    vocab_size=vocab_size,
                    context_length=context_length,
                    eos_ids=eos_ids,
                    model=model.path,
                )
            ]
        case "sglang":
            from fafo_run.engines.sglang import SglangEngine, server_urls

            return [
                SglangEngine(spec, url, vocab_size=vocab_size, context_length=context_length, eos_ids=eos_ids)
                for url in server_urls(spec)
            ]
        case "transformers":
            from fafo_run.engines.transformers import TransformersEngine

            return [
                TransformersEngine(
                    spec,
                    model,
                    root=root,
                    vocab_size=vocab_size,
                    context_length=context_length,
                    eos_ids=eos_ids,
                )
            ]
