"""One exported item as a flat row. The columns are a contract: docs/export.md lists them."""

from __future__ import annotations

from typing import Any

from fafo_run.item import BrokenRow, Failure, Output, Record
from fafo_run.prompt import PromptEncoder
from fafo_run.run.view import ViewItem

COLUMNS = (
    "identity",
    "class",
    "source",
    "key",
    "sample",
    "row",
    "text",
    "output_ids",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "model",
    "artifact",
    "sampling",
    "seed",
    "engine",
    "engine_version",
    "error",
    "message",
)


def exported(item: ViewItem, record: Record, encoder: PromptEncoder) -> dict[str, Any]:
    """Return the row of one item: the source's columns under `row`, the output both as text and as ids."""
    of = record.provenance
    outcome = record.outcome
    output = outcome if isinstance(outcome, Output) else None
    failure = outcome if isinstance(outcome, Failure) else None
    return {
        "identity": record.identity.hex(),
        "class": item.of.name,
        "source": of.source,
        "key": record.key,
        "sample": record.sample,
        "row": None if isinstance(item.row, BrokenRow) else dict(item.row.fields),
        "text": encoder.output_text(output, of.sampling.get("stop_token_ids", ())) if output else None,
        "output_ids": list(output.ids) if output else None,
        "finish_reason": output.finish_reason.type if output else None,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": output.cached_tokens if output else None,
        "model": of.model,
        "artifact": of.artifact,
        "sampling": dict(of.sampling),
        "seed": record.seed,
        "engine": of.engine,
        "engine_version": of.engine_version,
        "error": failure.code.value if failure else None,
        "message": failure.message if failure else None,
    }
