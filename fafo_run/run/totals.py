"""How many items a view stands for, found by reading every source once before its rows are taken.

That reading also finds what would otherwise end a run in the middle: a source that breaks off, two rows that
contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from fafo_run.run.view import View, ViewItem, items, once
from fafo_run.sources.view import See, Survey, open_source, survey


@frozen
class Totals:
    """What the sources hold, and what that makes of items."""

    by_class: Mapping[str, int]
    by_source: Mapping[str, int]
    """Items of all classes."""
    repeated: int
    """Rows that stand more than once in their source, with one key and one content."""
    broken: int
    """Rows that can't be read."""
    unmatched: tuple[str, ...] = ()
    """Lines for people on the globs of sources that no file matches, while others do."""


def count(view: View, workdir: Path, see: See | None = None) -> Totals:
    """Read every source of the view once; `see` is shown every row on the way.

    Raises `SourceError` when one can't be read, or names both rows where two share a key and differ in
    content.
    """
    return totals_of(
        view,
        {
            source.name: survey(open_source(source, view.project.root), workdir, see=see)
            for source in view.sources
        },
    )


def distinct(view: View, totals: Totals) -> Iterator[ViewItem]:
    """Yield every item of the view once. Remembers them, 100 bytes each, where a row stands twice.

    Raises `SourceError`.
    """
    return once(items(view)) if totals.repeated else items(view)


def totals_of(view: View, surveys: Mapping[str, Survey]) -> Totals:
    """Return what these surveys make of items of the view; a source without one counts as empty."""
    by_class: dict[str, int] = {}
    by_source = dict.fromkeys((source.name for source in view.sources), 0)
    for of in view.classes:
        left = view.limit
        by_class[of.name] = 0
        for source in of.sources:
            found = surveys.get(source.name)
            here = found.rows * of.sampling.samples + found.broken if found else 0
            here = here if left is None else min(here, left)
            left = None if left is None else left - here
            by_class[of.name] += here
            by_source[source.name] += here
    return Totals(
        by_class=by_class,
        by_source=by_source,
        repeated=sum(found.repeated for found in surveys.values()),
        broken=sum(found.broken for found in surveys.values()),
        unmatched=tuple(line for found in surveys.values() for line in nothing_matches(found)),
    )


def nothing_matches(found: Survey) -> Iterator[str]:
    """Yield a line for each glob of a source that no file matches, while others do."""
    yield from (f"source {found.source}: no file matches {pattern}" for pattern in found.unmatched)
