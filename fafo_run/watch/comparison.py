"""Outputs of one request, held against each other: where they part, what was to be expected. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import asdict, frozen

from fafo_run.engines.repeat import Level, Repeatability
from fafo_run.item import Ids, Record, Value


@frozen
class Change:
    """Something of the engine that isn't as it was when the item was recorded."""

    what: str
    then: Value
    """None when it wasn't told."""
    now: Value


@frozen
class Again:
    """One output."""

    ids: Ids
    text: str
    """Control tokens included."""
    finish_reason: str
    cached_tokens: int
    server: str
    """Empty for an engine in the process."""
    seconds: float


@frozen
class Compared:
    """An answer to a replayed item, and where it parts from the recorded output."""

    answer: Again
    parts_at: int | None
    """The number of the first output token that differs, from 0; None when all are equal."""
    before: str
    """The text up to there, of both."""
    recorded: str
    """The recorded text from there on; empty when nothing differs, or when it ends there."""
    answered: str
    """The answer's text from there on."""

    def as_json(self) -> dict[str, Any]:
        """Return what docs/commands.md describes."""
        return {
            "equal": self.parts_at is None,
            "parts_at": self.parts_at,
            "before": self.before,
            "recorded": self.recorded,
            "answered": self.answered,
            **asdict(self.answer),
            "ids": list(self.answer.ids),
        }


@frozen
class Replayed:
    """An item that was sent again."""

    record: Record
    recorded: Again
    expected: Repeatability
    """Whether equal outputs were to be expected: the weaker of what was promised then and is now."""
    changes: tuple[Change, ...]
    answers: tuple[Compared, ...]

    @property
    def equal(self) -> bool:
        """Whether every answer is the recorded output."""
        return all(each.parts_at is None for each in self.answers)

    @property
    def surprise(self) -> bool:
        """Whether an output differs that should have been equal, by an engine that is as it was."""
        return not self.equal and self.expected.level is Level.YES and not self.changes

    def as_json(self) -> dict[str, Any]:
        """Return the contract that docs/commands.md describes."""
        record = self.record
        return {
            "identity": record.identity.hex(),
            "class": record.provenance.class_name,
            "source": record.provenance.source,
            "key": record.key,
            "sample": record.sample,
            "seed": record.seed,
            "equal": self.equal,
            "expected": self.expected.as_json(),
            "changes": [asdict(change) for change in self.changes],
            "recorded": asdict(self.recorded) | {"ids": list(self.recorded.ids)},
            "answers": [each.as_json() for each in self.answers],
        }


def compared(recorded: Sequence[int], answer: Again, text_of: Callable[[Sequence[int]], str]) -> Compared:
    """Hold an answer against the recorded ids; `text_of` turns ids into text."""
    ids = answer.ids
    at = next(
        (at for at, (old, new) in enumerate(zip(recorded, ids, strict=False)) if old != new),
        min(len(recorded), len(ids)),
    )
    if at == len(recorded) == len(ids):
        return Compared(answer, None, answer.text, "", "")
    before = text_of(recorded[:at])
    # Decoded whole and cut: some decoders drop the space at the beginning of what they get.
    return Compared(answer, at, before, text_of(recorded)[len(before) :], answer.text[len(before) :])
