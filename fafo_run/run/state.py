"""The live counters of a run: written by its three roles, read as a snapshot by whoever shows them.

Derived, and gone with the process: what is true stands in the logs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

from attrs import define, evolve, field, frozen

from fafo_run.item import Failure, Output, Record
from fafo_run.run.view import ViewItem


@frozen
class ClassCount:
    """Items of one class."""

    total: int
    before: int
    """Outcomes that earlier runs recorded, as far as the producer has come."""
    failed_before: int
    """How many of them are failures."""
    completed: int
    """Outputs of this run."""
    failed: int
    """Failures of this run."""


@frozen
class Failures:
    """Failures of this run that have one code."""

    count: int
    example: str
    """The first of them, in one line: `exam · elements · Fe: elements.csv:2: …`."""


@frozen
class Snapshot:
    """A run at one moment."""

    by_class: Mapping[str, ClassCount]
    queued: int
    in_flight: int
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    """The ceiling over the same items."""
    output_tokens: int
    finish_reasons: Mapping[str, int]
    """Outputs by what ended them: `stop`, `length`, or what the engine said."""
    empty: int
    """Outputs that have no token, or no other than the one that ended them."""
    failures: Mapping[str, Failures]
    """By failure code."""
    rate: float
    """Finished items per second over the last minute; of this run alone, so that a resumed run's ETA
    is true.
    """
    eta: float | None
    """Seconds until all is done, by the work that is left in tokens; None while there is no rate."""
    notice: str
    """What the run waits for; empty when nothing holds it up."""
    elapsed: float
    """Seconds."""

    @property
    def total(self) -> int:
        """Items of the view."""
        return sum(count.total for count in self.by_class.values())

    @property
    def before(self) -> int:
        """Items that earlier runs finished."""
        return sum(count.before for count in self.by_class.values())

    @property
    def failed_before(self) -> int:
        """Failures that earlier runs recorded."""
        return sum(count.failed_before for count in self.by_class.values())

    @property
    def completed(self) -> int:
        """Outputs of this run."""
        return sum(count.completed for count in self.by_class.values())

    @property
    def failed(self) -> int:
        """Failures of this run."""
        return sum(count.failed for count in self.by_class.values())

    @property
    def left(self) -> int:
        """Items without an outcome."""
        return max(0, self.total - self.before - self.completed - self.failed)

    @property
    def hit_rate(self) -> float | None:
        """Cached of all prompt tokens; None before the first answer."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def ceiling(self) -> float | None:
        """What a perfect cache would have served, of all prompt tokens."""
        return self.expected_cached_tokens / self.prompt_tokens if self.prompt_tokens else None


_Feed = tuple[str, str]
"""Names of a class and a source."""
_WINDOW = 60.0
"""Seconds over which the rate is taken."""


@define
class RunState:
    """Counters that several threads write."""

    totals: Mapping[str, int]
    """Items per class; replaced when a service has counted anew."""
    costs: Mapping[str, float] = field(factory=dict)
    """Expected output tokens per item of a class, for as long as none was seen."""
    is_new: Callable[[bytes], bool] = lambda identity: False
    """Whether this run recorded an identity's outcome: then that isn't counted as found, too."""
    in_flight: int = 0
    _waits: dict[str, str] = field(factory=dict)
    """By who waits: for what."""
    _said: deque[str] = field(factory=deque)
    _began: float = field(factory=time.monotonic)
    _before: Counter[_Feed] = field(factory=Counter)
    _failed_before: Counter[_Feed] = field(factory=Counter)
    _completed: Counter[str] = field(factory=Counter)
    _failed: Counter[str] = field(factory=Counter)
    _tokens: Counter[str] = field(factory=Counter)
    _finish_reasons: Counter[str] = field(factory=Counter)
    _empty: int = 0
    _output_tokens: Counter[str] = field(factory=Counter)
    """By class."""
    _failures: dict[str, Failures] = field(factory=dict)
    _open: dict[bytes, bool] = field(factory=dict)
    """The identities that count as failed, and whether they did before this run: a retry takes them back."""
    _recent: deque[tuple[float, int, int]] = field(factory=deque)
    """Of each group commit: when, how many records, how many output tokens."""
    _lock: threading.Lock = field(factory=threading.Lock)

    def found_done(self, item: ViewItem, failed: bool) -> None:
        """Count an item that has an outcome, of an earlier run's. Whoever finds them, finds each once."""
        if self.is_new(item.identity):
            return
        feed = item.of.name, item.row.source
        with self._lock:
            self._before[feed] += 1
            if failed:
                self._failed_before[feed] += 1
                self._open[item.identity] = True

    def find_anew(self, source: str) -> None:
        """Forget what was found of a source: it is read from its beginning."""
        with self._lock:
            for found in (self._before, self._failed_before):
                for feed in [feed for feed in found if feed[1] == source]:
                    del found[feed]

    def find_as(self, other: RunState) -> None:
        """Take over what another one was told of as found."""
        with self._lock:
            self._before, self._failed_before = other._before, other._failed_before

    def wait_for(self, who: str, what: str) -> None:
        """Note what somebody waits for; nothing when `what` is empty."""
        with self._lock:
            if what:
                self._waits[who] = what
            else:
                self._waits.pop(who, None)

    def say(self, text: str) -> None:
        """Leave a line for whoever shows the run."""
        self._said.append(text)

    def said(self) -> Iterator[str]:
        """Yield the lines that were left since, each once."""
        while self._said:
            yield self._said.popleft()

    def count(self, records: list[Record]) -> None:
        """Add records that are durable now."""
        now = time.monotonic()
        made = 0
        with self._lock:
            for record in records:
                name = record.provenance.class_name
                if record.retry:
                    self._take_back((name, record.provenance.source), record.identity)
                if isinstance(record.outcome, Output):
                    self._completed[name] += 1
                    self._tokens["prompt"] += record.prompt_tokens
                    self._tokens["cached"] += record.outcome.cached_tokens
                    self._tokens["expected"] += record.outcome.expected_cached_tokens
                    self._output_tokens[name] += len(record.outcome.ids)
                    made += len(record.outcome.ids)
                    self._finish_reasons[record.outcome.finish_reason.type] += 1
                    self._empty += record.outcome.is_empty
                else:
                    self._failed[name] += 1
                    self._open[record.identity] = False
                    self._note(record, record.outcome)
            self._recent.append((now, len(records), made))
            while self._recent and self._recent[0][0] < now - _WINDOW:
                self._recent.popleft()

    def snapshot(self, queued: int) -> Snapshot:
        """Return the counters of this moment; `queued` is the depth of the queue."""
        now = time.monotonic()
        with self._lock:
            span = min(_WINDOW, max(now - self._began, 1e-9))
            recent = [(items, made) for at, items, made in self._recent if at >= now - _WINDOW]
            by_class = {name: self._class_count(name, total) for name, total in self.totals.items()}
            speed = sum(made for _, made in recent) / span
            return Snapshot(
                by_class=by_class,
                queued=queued,
                in_flight=self.in_flight,
                prompt_tokens=self._tokens["prompt"],
                cached_tokens=self._tokens["cached"],
                expected_cached_tokens=self._tokens["expected"],
                output_tokens=self._output_tokens.total(),
                finish_reasons=dict(self._finish_reasons),
                empty=self._empty,
                failures=dict(self._failures),
                rate=sum(items for items, _ in recent) / span,
                # While something holds it up, the rate of the last minute says nothing about what comes.
                eta=self._tokens_left(by_class) / speed if speed and not self._waits else None,
                notice="; ".join(self._waits.values()),
                elapsed=now - self._began,
            )

    def _take_back(self, feed: _Feed, identity: bytes) -> None:
        """Count an item's earlier failure no more: its retry has an outcome now."""
        before = self._open.pop(identity, None)
        if before:
            self._before[feed] -= 1
            self._failed_before[feed] -= 1
        elif before is not None:
            self._failed[feed[0]] -= 1

    def _class_count(self, name: str, total: int) -> ClassCount:
        completed, failed = self._completed[name], self._failed[name]
        before, failed_before = (
            sum(count for feed, count in found.items() if feed[0] == name)
            for found in (self._before, self._failed_before)
        )
        # A service counts anew while it works: rows that were found may be gone.
        before = min(before, max(0, total - completed - failed))
        return ClassCount(total, before, min(failed_before, before), completed, failed)

    def _tokens_left(self, by_class: Mapping[str, ClassCount]) -> float:
        """Return how many output tokens what is left will take: classes differ too much to count items."""
        left = 0.0
        for name, count in by_class.items():
            done = self._completed[name]
            cost = self._output_tokens[name] / done if done else self.costs.get(name, 1.0)
            left += max(0, count.total - count.before - count.completed - count.failed) * cost
        return left

    def _note(self, record: Record, failure: Failure) -> None:
        of = record.provenance
        code = failure.code.value
        known = self._failures.get(code)
        if known is None:
            example = f"{of.class_name} · {of.source} · {record.key}: {failure.message}"
            self._failures[code] = Failures(1, example)
        else:
            self._failures[code] = evolve(known, count=known.count + 1)
