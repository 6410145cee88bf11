"""The sources of a service: which of them may have new rows, which can't be read now, and when to look again.

A source that can't be read is an outage, and holds up no other: it is told, and tried again ever more slowly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import define, evolve, field

from fafo_build.errors import SourceError
from fafo_build.project.declaration import Source as Declared
from fafo_run.item import BrokenRow, Row
from fafo_run.run.backoff import Backoff
from fafo_run.run.intake import Intake
from fafo_run.run.state import RunState
from fafo_run.run.totals import nothing_matches, totals_of
from fafo_run.run.view import View, ViewItem, items, once
from fafo_run.sources.base import Source
from fafo_run.sources.change import Signature, signature
from fafo_run.sources.view import Survey, open_source, survey


@define
class _Feed:
    """One source, as far as it was read."""

    declared: Declared
    view: View
    """Those classes that use it, over it alone."""
    read: Signature | None = None
    """What it looked like before it was last read whole; None before that."""
    doubted: set[bytes] = field(factory=set)
    """Broken rows that were seen for the first time: maybe somebody is still writing them."""
    backoff: Backoff = field(factory=Backoff)
    outage: str = ""
    """Why it can't be read now; empty when it can."""
    counted: bool = False
    """Whether its items that were done before this run have been counted."""
    due: float = 0.0
    """When it is looked at again, in seconds of the monotonic clock."""


class Stopped(Exception):
    """The service is told to end, in the middle of a source."""


class Polling:
    """Takes the rows of all sources through an intake, again and again."""

    def __init__(
        self, view: View, workdir: Path, state: RunState, stopped: Callable[[], bool], *, every: float
    ) -> None:
        """`every` is in seconds; `workdir` is where a survey may put a file."""
        self._view = view
        self._workdir = workdir
        self._state = state
        self._stopped = stopped
        self._every = every
        self._feeds = [_Feed(source, _alone(view, source)) for source in view.sources]
        self._surveys: dict[str, Survey] = {}

    def look(self, intake: Intake) -> None:
        """Take what is new in each source that is due. Raises what isn't a source's fault."""
        for feed in self._feeds:
            if self._stopped():
                return
            if time.monotonic() >= feed.due:
                self._look_at(feed, intake)

    def pause(self) -> float:
        """Return for how many seconds nothing is due."""
        return max(0.0, min(feed.due for feed in self._feeds) - time.monotonic())

    def _look_at(self, feed: _Feed, intake: Intake) -> None:
        name = feed.declared.name
        try:
            seen = signature(feed.declared, self._view.project.root)
            # What a query would give only reading tells.
            if seen is None or seen != feed.read or feed.doubted:
                self._read(feed, intake)
                feed.read, feed.counted = seen, True
        except SourceError as error:
            wait = feed.backoff.failed()
            self._out(feed, error)
        except Stopped:
            return
        else:
            wait = self._every
            feed.backoff.worked()
            feed.outage = ""
            self._state.wait_for(f"source {name}", "")
        feed.due = time.monotonic() + wait

    def _out(self, feed: _Feed, error: SourceError) -> None:
        """Say once why a source can't be read."""
        name, reason = feed.declared.name, error.render()
        if reason != feed.outage:
            self._state.say(f"source {name} can't be read now; it is tried again:\n{reason}")
        feed.outage, feed.read = reason, None
        self._state.wait_for(f"source {name}", f"source {name}: {error.problems[0].message}")

    def _read(self, feed: _Feed, intake: Intake) -> None:
        source = _Watched(open_source(feed.declared, self._view.project.root), self._stopped)
        found = survey(source, self._workdir)
        known = self._surveys.get(feed.declared.name)
        if known is None or found.unmatched != known.unmatched:
            for line in nothing_matches(found):
                self._state.say(line)
        self._surveys[feed.declared.name] = found
        self._state.totals = totals_of(self._view, self._surveys).by_class
        before, feed.doubted = feed.doubted, set()
        settled = self._settled(feed, before, intake.has_outcome)
        if feed.counted:
            intake.take(settled)
        else:
            # An earlier pass may have ended in the middle.
            self._state.find_anew(feed.declared.name)
            intake.take(settled, passed=self._state.found_done)

    def _settled(
        self, feed: _Feed, before: set[bytes], has_outcome: Callable[[ViewItem], bool]
    ) -> Iterator[ViewItem]:
        """Yield the items of a source, of broken rows those that were broken the last time, too, or are
        recorded as that.

        A row that is half written when it is read is no broken row: the next look finds it whole.
        """
        found = items(feed.view)
        for item in once(found) if self._surveys[feed.declared.name].repeated else found:
            broken = isinstance(item.row, BrokenRow)
            if broken and item.identity not in before and not has_outcome(item):
                feed.doubted.add(item.identity)
            else:
                yield item


@define
class _Watched(Source):
    """A source whose reading ends when the service does."""

    _source: Source
    _stopped: Callable[[], bool]
    name: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.name = self._source.name

    def columns(self) -> tuple[str, ...] | None:
        """Return the source's columns."""
        return self._source.columns()

    def rows(self) -> Iterator[Row | BrokenRow]:
        """Yield its rows. Raises `Stopped`."""
        for row in self._source.rows():
            if self._stopped():
                raise Stopped
            yield row
        self.unmatched = self._source.unmatched


def _alone(view: View, source: Declared) -> View:
    """Return the view over one of its sources only."""
    classes = tuple(
        evolve(of, sources=(source,))
        for of in view.classes
        if source.name in {each.name for each in of.sources}
    )
    return evolve(view, classes=classes)
