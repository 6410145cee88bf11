"""What a run would still have to do: whole counts, and what a sample of it would cost. Writes nothing.

It encodes as the producer would and packs as the logs would, so that tokens and bytes are those of a run.
"""

from __future__ import annotations

import heapq
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from attrs import define, field, frozen

from fafo_run.item import FailureCode, FinishReason, Output, QueuedItem, Record, pack_ids
from fafo_run.log.directory import NoStore
from fafo_run.log.format import padded
from fafo_run.log.payload import ProvenanceCache
from fafo_run.queue import payload as queue_payload
from fafo_run.results import payload as results_payload
from fafo_run.run.making import Maker
from fafo_run.run.records import ceiling
from fafo_run.run.store import RunReader
from fafo_run.run.totals import Totals, count, distinct
from fafo_run.run.view import ClassView, View, ViewItem

_BATCH = 1_000
"""Items that are looked up in the results at once."""
_TOGETHER = 64
"""Items that are encoded at once."""
_LEAST = 30
"""Items of each class that a sample has at least, where there are so many."""
_KNOWN = 30
"""Outputs of a class from which on their mean length says how long others will be."""
KEPT = 20_000
"""Encoded items that are kept for a simulation, of all classes together; some 500 bytes each."""
_KEPT_LEAST = 100
"""Of each class, however many there are."""
_BESIDE = 28 + 75
"""Bytes per record besides its entry: its row in the hint, its place in the index (docs/format.md)."""


@define
class Sums:
    """Over the encoded items of one class."""

    items: int = 0
    failures: Counter[FailureCode] = field(factory=Counter)
    """Of these, those that will be failure records, by why no prompt of theirs can be sent."""
    example: str = ""
    """The first one's message."""
    prompt_tokens: int = 0
    """Here and below: of those that can be sent."""
    ceiling_tokens: int = 0
    lanes: Counter[int] = field(factory=Counter)
    """Items by lane."""
    lane_tokens: Counter[int] = field(factory=Counter)
    queue_bytes: int = 0
    """Entries in the queue, of all of them."""
    results_bytes: int = 0
    """Records at the longest output, with what the hint and the index have of them."""
    expected_bytes: int = 0
    """The same at the expected output."""

    @property
    def unsendable(self) -> int:
        """How many will be failure records."""
        return self.failures.total()


@define
class ClassLeft:
    """One class."""

    of: ClassView
    total: int
    """Items of the view."""
    done: int = 0
    """Those that have an outcome already and aren't put back."""
    written: float = 0.0
    """How many tokens an output is expected to have."""
    known: bool = False
    """Whether that is the mean of outputs in the results; else it is `max_new_tokens`."""
    sums: Sums = field(factory=Sums)
    sample: list[QueuedItem] = field(factory=list)
    """Encoded items that can be sent, in the order of the view: the first ones, as many as are kept."""

    @property
    def left(self) -> int:
        """How many have no outcome yet."""
        return max(0, self.total - self.done)

    @property
    def scale(self) -> float:
        """How many items each encoded one stands for."""
        return self.left / self.sums.items if self.sums.items else 0.0


@frozen
class Left:
    """All classes of a view."""

    classes: tuple[ClassLeft, ...]
    """In the order in which a run takes them."""
    totals: Totals
    encoded: int
    """How many items were encoded; all that are left, or a sample of them."""

    @property
    def exact(self) -> bool:
        """Whether all that is left was encoded."""
        return self.encoded >= sum(each.left for each in self.classes)


def look(view: View, folder: Path, *, sample: int | None, page_size: int = 1, server: str = "") -> Left:
    """Return what is left of a view for the run in `folder`, with about `sample` items encoded; None: all.

    The sample is each class's items with the lowest identities: random with regard to the rows, and the same
    each time. `page_size` is the cache's, in tokens; `server` the URL that records will name.

    Raises `SourceError` as a run would, before its first item.
    """
    with tempfile.TemporaryDirectory(prefix="fafo-plan") as workdir:
        totals = count(view, Path(workdir))
    classes = {of.name: ClassLeft(of, totals.by_class[of.name]) for of in view.classes}
    reader = _reader(folder)
    try:
        _expect(view, reader, classes)
        measure = _Measure(Maker(view), classes, page_size, server)
        found = _new(distinct(view, totals), reader, classes)
        if sample is not None:
            found = _Chosen(classes, sample).of(found)
        while together := list(islice(found, _TOGETHER)):
            measure.add(together)
    finally:
        if reader is not None:
            reader.results.close()
    return Left(tuple(classes.values()), totals, measure.encoded)


def _reader(folder: Path) -> RunReader | None:
    try:
        return RunReader.open(folder)
    except NoStore:
        return None


def _new(
    found: Iterator[ViewItem], reader: RunReader | None, classes: Mapping[str, ClassLeft]
) -> Iterator[ViewItem]:
    """Yield what has no outcome yet, and count what has."""
    if reader is None:
        yield from found
        return
    retries = reader.retries()
    while batch := list(islice(found, _BATCH)):
        done = reader.results.done([(item.identity, retries.get(item.identity, 0)) for item in batch])
        for item, is_done in zip(batch, done, strict=True):
            if is_done:
                classes[item.of.name].done += 1
            else:
                yield item


def _expect(view: View, reader: RunReader | None, classes: Mapping[str, ClassLeft]) -> None:
    """Set how long outputs will be: as those of the class in the results, or as long as they may be."""
    outputs: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for group, counts in reader.results.summary().groups.items() if reader is not None else ():
        owner = view.owner(group)
        if owner is not None:
            outputs[owner] += counts.outputs
            tokens[owner] += counts.output_tokens
    for name, each in classes.items():
        each.known = outputs[name] >= _KNOWN
        each.written = tokens[name] / outputs[name] if each.known else each.of.sampling.max_new_tokens


class _Chosen:
    """Of each class the items with the lowest identities, as many as its share of the sample."""

    def __init__(self, classes: Mapping[str, ClassLeft], sample: int) -> None:
        total = sum(each.total for each in classes.values()) or 1
        self._most = {name: max(_LEAST, sample * each.total // total) for name, each in classes.items()}
        self._heaps: dict[str, list[tuple[int, int, ViewItem]]] = {name: [] for name in classes}
        """By the negative identity: the highest is at the top."""
        self._highest: dict[str, bytes] = {}
        """The identity at the top, of the heaps that are full."""
        self._place = 0

    def of(self, found: Iterable[ViewItem]) -> Iterator[ViewItem]:
        """Look at all of these, and yield what was kept, in their order."""
        for item in found:
            self._take(item)
        kept = (entry for heap in self._heaps.values() for entry in heap)
        yield from (item for _, _, item in sorted(kept, key=lambda entry: entry[1]))

    def _take(self, item: ViewItem) -> None:
        """Keep an item if its identity is low enough."""
        name = item.of.name
        self._place += 1
        # Nearly all end here: a million rows are a second or two.
        if name in self._highest and item.identity >= self._highest[name]:
            return
        heap, entry = self._heaps[name], (-int.from_bytes(item.identity), self._place, item)
        if name in self._highest:
            heapq.heapreplace(heap, entry)
        else:
            heapq.heappush(heap, entry)
        if len(heap) >= self._most[name]:
            self._highest[name] = heap[0][2].identity


class _Measure:
    """Encodes items and adds up what they cost."""

    def __init__(self, maker: Maker, classes: Mapping[str, ClassLeft], page_size: int, server: str) -> None:
        self._maker = maker
        self._classes = classes
        self._page_size = page_size
        self._server = server
        self._cache = ProvenanceCache()
        self._kept = max(_KEPT_LEAST, KEPT // len(classes))
        self.encoded = 0

    def add(self, found: Sequence[ViewItem]) -> None:
        """Encode items and count them for their classes."""
        made = self._maker.make_each([(each, 0) for each in found])
        for each, item in zip(found, made, strict=True):
            self._count(item, self._classes[each.of.name])

    def _count(self, item: QueuedItem, each: ClassLeft) -> None:
        sums = each.sums
        self.encoded += 1
        sums.items += 1
        sums.queue_bytes += padded(len(queue_payload.draft(item, self._cache).payload))
        most = each.of.sampling.max_new_tokens
        if item.failure is not None:
            sums.failures[item.failure.code] += 1
            sums.example = sums.example or item.failure.message
            most = 0
        sums.results_bytes += self._record(item, most)
        sums.expected_bytes += self._record(item, min(most, round(each.written)))
        if item.failure is not None:
            return
        sums.prompt_tokens += item.prompt_tokens
        sums.ceiling_tokens += ceiling(each.of.artifact.prefix, item.prompt_tokens, self._page_size)
        sums.lanes[item.lane] += 1
        sums.lane_tokens[item.lane] += item.prompt_tokens
        if len(each.sample) < self._kept:
            each.sample.append(item)

    def _record(self, item: QueuedItem, tokens: int) -> int:
        """Return the bytes of the record of an item with so many output tokens."""
        # The highest id there is decides, as in a real output, whether ids take two bytes or four.
        ids = pack_ids((self._classes[item.provenance.class_name].of.model.locked.vocab_size - 1,) * tokens)
        record = Record(
            identity=item.identity, provenance=item.provenance, key=item.key, sample=item.sample,
            seed=item.seed, content_hash=item.content_hash, suffix=item.suffix, bounds=item.bounds,
            prompt_tokens=item.prompt_tokens, lane=item.lane, attempt=1, server=self._server,
            started=time.time(), seconds=1.5,
            outcome=Output(ids, FinishReason("length"), item.prompt_tokens, item.prompt_tokens),
        )  # fmt: skip
        return padded(len(results_payload.draft(record, self._cache).payload)) + _BESIDE
