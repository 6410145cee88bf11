"""What failed and why: the failures that count, grouped by code and class, with examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from fafo_build.errors import SourceError
from fafo_run.item import BrokenRow, Record, Row
from fafo_run.run.failures import Failed, Which
from fafo_run.run.store import RunReader
from fafo_run.run.view import View
from fafo_run.sources.view import open_source
from fafo_run.watch.rows import RowNow, row_now

EXAMPLES = 3


@define
class Example:
    """One failure."""

    failed: Failed
    retries: int
    """How often it was put back, a retry that waits included."""
    row: RowNow | None = None
    """What has become of its row; None when its source isn't declared any more or can't be read."""
    where: str | None = None
    """Where a person finds its row, or what it has become; None when there is none."""

    def see(self, row: Row | BrokenRow) -> None:
        """Take note of a row that has its key now."""
        if self.row is not RowNow.SAME:
            self.row, self.where = row_now(self.failed.record, row), row.where

    def as_json(self) -> dict[str, Any]:
        """Return it as `fafo failures --json` prints it."""
        record, failure = self.failed.record, self.failed.failure
        return {
            "identity": record.identity.hex(),
            "source": record.provenance.source,
            "key": record.key,
            "sample": record.sample,
            "row": self.row.value if self.row else None,
            "where": self.where,
            "stage": failure.stage.value,
            "message": failure.message,
            "attempts": record.attempt,
            "retry": record.retry,
            "waiting": self.retries > record.retry,
            "superseded": self.failed.owner is None,
        }


@define
class Group:
    """The failures of one code and one class."""

    code: str
    class_name: str
    count: int = 0
    waiting: int = 0
    """Of these, how many were put back and wait."""
    superseded: int = 0
    """Of these, how many are of work that isn't declared any more."""
    gone: int = 0
    """Of the others, how many are of rows that are gone or have changed: they are superseded too."""
    examples: list[Example] = field(factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as `fafo failures --json` prints it."""
        return {
            "code": self.code,
            "class": self.class_name,
            "count": self.count,
            "waiting": self.waiting,
            "superseded": self.superseded,
            "gone": self.gone,
            "examples": [example.as_json() for example in self.examples],
        }


@frozen
class Failures:
    """All that failed, the most frequent first."""

    groups: tuple[Group, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(group.count for group in self.groups)

    @property
    def superseded(self) -> int:
        """How many are of work that isn't declared any more."""
        return sum(group.superseded for group in self.groups)

    @property
    def gone(self) -> int:
        """How many of the others are of rows that are gone or have changed."""
        return sum(group.gone for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/commands.md describes."""
        return {
            "count": self.count,
            "waiting": sum(group.waiting for group in self.groups),
            "superseded": self.superseded,
            "gone": self.gone,
            "groups": [group.as_json() for group in self.groups],
        }


def failures_of(view: View, folder: Path, which: Which, examples: int = EXAMPLES) -> Failures:
    """Return the failures that are chosen, with so many examples of each group.

    `view` is of the whole project. Their sources are read once, until the row of every failure is found;
    each such row takes some 150 bytes of memory. Raises `StoreError`.
    """
    groups: dict[tuple[str, str], Group] = {}
    rows: dict[str, set[bytes]] = {}
    with RunReader.open(folder) as reader:
        waiting = reader.retries()
        for failed in which.of(view, reader.results):
            group = groups.setdefault(_kind(failed), Group(*_kind(failed)))
            retries = waiting.get(failed.record.identity, failed.record.retry)
            group.count += 1
            group.waiting += retries > failed.record.retry
            group.superseded += failed.owner is None
            rows.setdefault(failed.record.provenance.source, set()).add(_row_name(failed.record))
            if len(group.examples) < examples:
                group.examples.append(Example(failed, retries))
        shown = [example for group in groups.values() for example in group.examples]
        for source, names in rows.items():
            _look_for(view, source, names, shown)
        for failed in which.of(view, reader.results) if any(rows.values()) else ():
            gone = _row_name(failed.record) in rows[failed.record.provenance.source]
            groups[_kind(failed)].gone += gone and failed.owner is not None
    by_code = {code: 0 for code, _ in groups}
    for group in groups.values():
        by_code[group.code] += group.count
    ordered = sorted(groups.values(), key=lambda group: (-by_code[group.code], group.code, -group.count))
    return Failures(tuple(ordered))


def _kind(failed: Failed) -> tuple[str, str]:
    return failed.failure.code.value, failed.class_name


def _row_name(row: Record | Row | BrokenRow) -> bytes:
    """Return what rows of one source that are equal in key and content have in common, small: some runs have
    many failures.
    """
    return row.content_hash + row.key.encode("utf-8", "surrogatepass")


def _look_for(view: View, source: str, names: set[bytes], examples: list[Example]) -> None:
    """Take the rows that stand in the source as they were out of `names`, and note what became of those of
    examples. Reads no further than it has to.
    """
    of_key: dict[str, list[Example]] = {}
    for example in examples:
        if example.failed.record.provenance.source == source:
            of_key.setdefault(example.failed.record.key, []).append(example)
    declared = view.project.sources.get(source)
    if declared is None:
        names.clear()
        return
    try:
        for row in open_source(declared, view.project.root).rows():
            names.discard(_row_name(row))
            for example in of_key.get(row.key, ()):
                example.see(row)
            if not names:
                return
    except SourceError:
        # That the source can't be read now takes nothing from what is known of its failures.
        names.clear()
        return
    for example in (each for found in of_key.values() for each in found):
        example.row = example.row or RowNow.GONE
