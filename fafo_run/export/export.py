"""Walks the view and writes what the results hold of each item."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from fafo_run.export.row import exported
from fafo_run.export.writers import open_writer
from fafo_run.item import Output
from fafo_run.prompt import PromptEncoder
from fafo_run.run.store import RunReader
from fafo_run.run.totals import count
from fafo_run.run.view import View, items


@frozen
class Exported:
    """What an export wrote, and what not."""

    written: int
    failed: int
    """Items with a failure record, written or not."""
    waiting: int
    """Items without an outcome."""
    damaged: bool
    """Whether outcomes are there that can't be read any more."""


def export(view: View, reader: RunReader, out: Path, *, failures: bool) -> Exported:
    """Write one row per item of the view that has an output, and, with `failures`, per item that failed.

    Raises `DeclarationError` for an ending that is neither .jsonl nor .parquet, `SourceError`, `StoreError`.
    """
    encoders = {of.name: PromptEncoder(of.artifact, of.model.encoder) for of in view.classes}
    written = failed = waiting = 0
    with open_writer(out) as writer:
        # A row that stands twice in its source is one item. Remembering what was written is only worth its
        # memory when there is such a row.
        written_before: set[bytes] | None = set() if count(view, out.absolute().parent).repeated else None
        for item in items(view):
            if written_before is not None:
                if item.identity in written_before:
                    continue
                written_before.add(item.identity)
            record = reader.results.find(item.identity)
            if record is None:
                waiting += 1
                continue
            is_output = isinstance(record.outcome, Output)
            failed += not is_output
            if is_output or failures:
                writer.write(exported(item, record, encoders[item.of.name]))
                written += 1
    return Exported(written, failed, waiting, reader.results.damaged)
