"""Makes queue entries of a view's items: the one place where a row becomes token ids in a run.

What can't become a prompt becomes an entry too, that says why: nobody but the run itself writes results.
"""

from __future__ import annotations

from collections.abc import Sequence

from fafo_run.identity import seed
from fafo_run.item import BrokenRow, Failure, FailureCode, Provenance, QueuedItem, Row, Stage
from fafo_run.prompt import Prompt, PromptEncoder, PromptError
from fafo_run.run import records
from fafo_run.run.lane import lane_of
from fafo_run.run.view import ClassView, View, ViewItem

_RECHECK_ONE_IN = 256
"""Of which items, besides the first of each class and source, the prompt is encoded a second time, whole."""


class Maker:
    """Encodes items. Not thread-safe."""

    def __init__(self, view: View, context_length: int | None = None) -> None:
        """`context_length` is the engine's, in tokens; where no engine is known the model's own counts."""
        self._lanes = view.project.run.lanes
        self._limit = context_length
        self._encoders = {of.name: PromptEncoder(of.artifact, of.model.encoder) for of in view.classes}
        self._shared: dict[tuple[str, str], Provenance] = {}
        """By class and source; one object each, so that the queue packs it once."""

    def make(self, item: ViewItem, *, retry: int = 0) -> QueuedItem:
        """Return the queue's entry for an item of which `retry` failures were put back before."""
        (made,) = self.make_each([(item, retry)])
        return made

    def make_each(self, items: Sequence[tuple[ViewItem, int]]) -> list[QueuedItem]:
        """Do as `make` does for each item with its `retry`: the tokenizer is asked for all at once."""
        encoded = self._encode([item for item, _ in items])
        return [self._made(item, retry, found) for (item, retry), found in zip(items, encoded, strict=True)]

    def _encode(self, items: Sequence[ViewItem]) -> list[Prompt | Failure]:
        """Return the prompt of each item, or why there is none."""
        found: dict[int, Prompt | Failure] = {}
        by_class: dict[str, list[tuple[int, Row]]] = {}
        for at, item in enumerate(items):
            row = item.row
            if isinstance(row, BrokenRow):
                message = f"{row.where}: {row.message}"
                found[at] = Failure(FailureCode.ROW_INVALID, Stage.SOURCE, message)
            else:
                by_class.setdefault(item.of.name, []).append((at, row))
        for name, rows in by_class.items():
            made = self._encoders[name].encode_each((row.fields, row.source, row.key) for _, row in rows)
            for (at, row), prompt in zip(rows, made, strict=True):
                if isinstance(prompt, PromptError):
                    message = f"{row.where}: {prompt}"
                    found[at] = Failure(FailureCode.ROW_INVALID, Stage.PROMPT, message)
                else:
                    found[at] = prompt
        return [found[at] for at in range(len(items))]

    def _made(self, item: ViewItem, retry: int, encoded: Prompt | Failure) -> QueuedItem:
        first = (item.of.name, item.row.source) not in self._shared
        shared = self.provenance(item.of, item.row.source)
        if isinstance(encoded, Failure):
            return records.queued(item, shared, seed(item.identity), None, 0, failure=encoded, retry=retry)
        failure = self._unsendable(item, encoded, recheck=first or _sampled(item.identity))
        lane = lane_of(encoded.prompt_tokens, self._lanes, self._context(item.of))
        return records.queued(item, shared, seed(item.identity), encoded, lane, failure=failure, retry=retry)

    def provenance(self, of: ClassView, source: str) -> Provenance:
        """Return what all queue entries of a class and a source share."""
        found = self._shared.get((of.name, source))
        if found is None:
            found = self._shared[of.name, source] = records.provenance(of, source)
        return found

    def _context(self, of: ClassView) -> int:
        own = of.model.locked.context_length
        return own if self._limit is None else min(own, self._limit)

    def _unsendable(self, item: ViewItem, prompt: Prompt, *, recheck: bool) -> Failure | None:
        """Return why an item's prompt can't be sent, None if it can."""
        row = item.row
        wanted, context = item.of.sampling.max_new_tokens, self._context(item.of)
        if prompt.prompt_tokens + wanted > context:
            asked = f"{prompt.prompt_tokens} prompt tokens and {wanted} new ones"
            message = f"{row.where}: {asked} are more than the context of {context}"
            return Failure(FailureCode.TOO_LONG, Stage.PROMPT, message)
        encoder = self._encoders[item.of.name]
        if isinstance(row, Row) and recheck and not encoder.recheck(row.fields, row.source, row.key, prompt):
            message = f"{row.where}: the ids differ from those of the conversation encoded as a whole"
            return Failure(FailureCode.PROMPT_NOT_CANONICAL, Stage.PROMPT, message)
        return None


def _sampled(identity: bytes) -> bool:
    """Choose by identity, so that a run that is repeated checks the same items."""
    return int.from_bytes(identity[-2:], "little") % _RECHECK_ONE_IN == 0
