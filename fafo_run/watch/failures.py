"""What failed and why: the failures that count, grouped by code and class, with examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from fafo_build.errors import SourceError
from fafo_run.run.failures import Failed, Which
from fafo_run.run.store import RunReader
from fafo_run.run.view import View
from fafo_run.sources.view import open_source

EXAMPLES = 3


@define
class Example:
    """One failure."""

    failed: Failed
    retries: int
    """How often it was put back, a retry that waits included."""
    where: str | None = None
    """Where a person finds its row; None when no source has it any more."""

    def as_json(self) -> dict[str, Any]:
        """Return it as `fafo failures --json` prints it."""
        record, failure = self.failed.record, self.failed.failure
        return {
            "identity": record.identity.hex(),
            "source": record.provenance.source,
            "key": record.key,
            "sample": record.sample,
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
    examples: list[Example] = field(factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as `fafo failures --json` prints it."""
        return {
            "code": self.code,
            "class": self.class_name,
            "count": self.count,
            "waiting": self.waiting,
            "superseded": self.superseded,
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

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/commands.md describes."""
        return {
            "count": self.count,
            "waiting": sum(group.waiting for group in self.groups),
            "superseded": sum(group.superseded for group in self.groups),
            "groups": [group.as_json() for group in self.groups],
        }


def failures_of(view: View, folder: Path, which: Which, examples: int = EXAMPLES) -> Failures:
    """Return the failures that are chosen, with so many examples of each group.

    `view` is of the whole project. Raises `StoreError`.
    """
    groups: dict[tuple[str, str], Group] = {}
    with RunReader.open(folder) as reader:
        waiting = reader.retries()
        for failed in which.of(view, reader.results):
            code, name = failed.failure.code.value, failed.class_name
            group = groups.setdefault((code, name), Group(code, name))
            retries = waiting.get(failed.record.identity, failed.record.retry)
            group.count += 1
            group.waiting += retries > failed.record.retry
            group.superseded += failed.owner is None
            if len(group.examples) < examples:
                group.examples.append(Example(failed, retries))
    _find_rows(view, [example for group in groups.values() for example in group.examples])
    by_code = {code: 0 for code, _ in groups}
    for group in groups.values():
        by_code[group.code] += group.count
    ordered = sorted(groups.values(), key=lambda group: (-by_code[group.code], group.code, -group.count))
    return Failures(tuple(ordered))


def _find_rows(view: View, examples: list[Example]) -> None:
    """Note where the row of each example stands, reading each of their sources once at most."""
    wanted: dict[str, dict[tuple[str, bytes], list[Example]]] = {}
    for example in examples:
        record = example.failed.record
        rows = wanted.setdefault(record.provenance.source, {})
        rows.setdefault((record.key, record.content_hash), []).append(example)
    for source, rows in wanted.items():
        for name, where in _places(view, source):
            for example in rows.pop(name, ()):
                example.where = where
            if not rows:
                break


def _places(view: View, source: str) -> Iterator[tuple[tuple[str, bytes], str]]:
    declared = view.project.sources.get(source)
    if declared is None:
        return
    try:
        for row in open_source(declared, view.project.root).rows():
            yield (row.key, row.content_hash), row.where
    except SourceError:
        # That the source can't be read now takes nothing from what is known of its failures.
        return
