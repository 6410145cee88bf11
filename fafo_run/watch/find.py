"""Finds the items that a person means: by identity, by the beginning of one, or by key."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fafo_build.bake.store import (
    OtherFormatError,
    artifact_path,
    read_artifact,
    read_named,
    tokenizer_path,
)
from fafo_build.errors import DeclarationError
from fafo_run.item import BrokenRow, Failure, Record, Row
from fafo_run.prompt import PromptEncoder
from fafo_run.run.store import RunReader
from fafo_run.run.view import View
from fafo_run.sources.view import open_source
from fafo_run.watch.rows import RowNow, row_now
from fafo_run.watch.show import Shown, shown

_IDENTITY = re.compile(r"[0-9a-f]{8,32}")
_MOST = 20
"""The most items that are shown at once."""


def find(view: View, reader: RunReader, name: str) -> list[Shown]:
    """Return the items of the view's classes whose identity begins with `name`, or whose key is `name`.

    Superseded items are left out while there are current ones. Raises `DeclarationError` when there is none,
    `SourceError` when a source can't be read.
    """
    classes = {of.name for of in view.classes}
    records = [
        record
        for record in _matches(reader, name)
        if (view.owner(record.provenance) or record.provenance.class_name) in classes
    ]
    if not records:
        raise DeclarationError.of(
            f'no item with the identity or key "{name}" has a result',
            cure="`fafo items` lists keys and identities; an item shows once it has a result",
        )
    items = [_shown(view, reader, record) for record in records]
    current = [item for item in items if item.current]
    return (current or items)[:_MOST]


def _matches(reader: RunReader, name: str) -> Iterator[Record]:
    whole = bytes.fromhex(name) if _IDENTITY.fullmatch(name) and len(name) == 32 else None
    if whole is not None and (record := reader.results.find(whole)) is not None:
        yield record
        return
    is_beginning = _IDENTITY.fullmatch(name) is not None
    for record in reader.results.effective():
        if record.key == name or (is_beginning and record.identity.hex().startswith(name)):
            yield record


def _shown(view: View, reader: RunReader, record: Record) -> Shown:
    row = _row(view, record)
    is_same = row is not None and row_now(record, row) is RowNow.SAME
    is_current = is_same and view.owner(record.provenance) is not None
    earlier = [before for before in reader.results.history(record.identity) if _is_before(before, record)]
    return shown(record, row, _encoder(view, record), current=is_current, earlier=earlier)


def _is_before(other: Record, record: Record) -> bool:
    return isinstance(other.outcome, Failure) and other != record


def _row(view: View, record: Record) -> Row | BrokenRow | None:
    """Return the source's row with this key, the one with this content if there is one."""
    declared = view.project.sources.get(record.provenance.source)
    if declared is None:
        return None
    found = None
    for row in open_source(declared, view.project.root).rows():
        if row.key == record.key:
            found = row
            if row_now(record, row) is RowNow.SAME:
                break
    return found


def _encoder(view: View, record: Record) -> PromptEncoder | None:
    """Return the encoder of the artifact that a record was made with, if build/ has it in today's format."""
    build = view.project.build_dir
    if not artifact_path(build, record.provenance.artifact).exists():
        return None
    try:
        artifact = read_artifact(build, record.provenance.artifact)
    except OtherFormatError:
        return None
    path = tokenizer_path(build, artifact.tokenizer)
    return PromptEncoder(artifact, read_named(path, artifact.tokenizer)) if path.exists() else None
