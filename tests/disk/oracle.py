"""The model of a store: what was handed in, what was acknowledged, and the rule that always holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fafo_run.item import Output, QueuedItem, Record
from tests.disk.life import Life


class Broken(AssertionError):
    """The rule doesn't hold."""


class Oracle:
    """Knows every item and record that was ever handed in, and which of them were acknowledged."""

    def __init__(self) -> None:
        self.items: dict[bytes, QueuedItem] = {}
        self.records: dict[bytes, list[Record]] = {}
        self.queued: set[bytes] = set()
        """Identities whose item was acknowledged."""
        self.recorded: set[bytes] = set()
        """Identities of which some record was acknowledged."""
        self.answered: set[bytes] = set()
        """Identities of which an output was acknowledged."""

    def copy(self) -> Oracle:
        other = Oracle()
        other.items = dict(self.items)
        other.records = {identity: list(of) for identity, of in self.records.items()}
        other.queued, other.recorded = set(self.queued), set(self.recorded)
        other.answered = set(self.answered)
        return other

    def state(self) -> tuple[frozenset[bytes], ...]:
        """Return what the rule depends on, besides what was handed in."""
        return frozenset(self.queued), frozenset(self.recorded), frozenset(self.answered)

    # What a life does, told before and after.

    def offer_items(self, items: Iterable[QueuedItem]) -> None:
        self.items |= {one.identity: one for one in items}

    def acknowledge_items(self, items: Iterable[QueuedItem]) -> None:
        self.queued |= {one.identity for one in items}

    def offer_records(self, records: Iterable[Record]) -> None:
        for one in records:
            self.records.setdefault(one.identity, []).append(one)

    def acknowledge_records(self, records: Iterable[Record]) -> None:
        for one in records:
            self.recorded.add(one.identity)
            if isinstance(one.outcome, Output):
                self.answered.add(one.identity)

    def check(self, life: Life) -> None:
        """Raise `Broken` unless everything acknowledged is there, and nothing else but what was handed in."""
        waiting = life.waiting()
        found = life.records()
        for one in waiting:
            _hold(self.items.get(one.identity) == one, "invented item", one)
        for one in found:
            _hold(one in self.records.get(one.identity, ()), "invented record", one)
        outputs = Counter(one.identity for one in found if isinstance(one.outcome, Output))
        _hold(max(outputs.values(), default=0) <= 1, "two outputs of one identity", outputs)
        recorded = {one.identity for one in found}
        _hold(self.recorded <= recorded, "lost record", self.recorded - recorded)
        _hold(self.answered <= set(outputs), "lost output", self.answered - set(outputs))
        waits = {one.identity for one in waiting}
        _hold(self.queued <= waits | recorded, "lost item", self.queued - waits - recorded)
        _hold(not waits & recorded, "an item waits that has a record", waits & recorded)
        _hold(life.queue.depth() == len(waiting) == len(waits), "depth", (life.queue.depth(), len(waiting)))
        for identity in recorded:
            of = life.results.find(identity)
            counts = identity in outputs
            _hold(of in self.records[identity] and isinstance(of.outcome, Output) is counts, "found", of)
        total = life.results.summary().total
        _hold((total.outputs, total.failed) == (len(outputs), len(recorded) - len(outputs)), "sums", total)

    def take_as_served(self, life: Life) -> None:
        """Count all that a life serves as acknowledged: it was seen, so it must not vanish later."""
        self.acknowledge_items(life.waiting())
        self.acknowledge_records(life.records())


def _hold(holds: bool, what: str, seen: object) -> None:
    if not holds:
        raise Broken(f"{what}: {seen}")
