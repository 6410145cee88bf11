"""The ids around one slot: what the proof compares for every probe. Encoding the whole conversation for each
would take a hundred times as long.

A window is the slot with the nearest part of the constant text on both sides. What lies beyond it is the
same for every item, and further from the slot than text reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from fafo_build.bake.artifact import Artifact, Span
from fafo_build.bake.assemble import constant, joined, reference
from fafo_build.render.marks import Marked
from fafo_build.tokens.boundary import cuts_of
from fafo_build.tokens.encoder import Context, Place, TextEncoder

_REACH = 400
"""Characters of constant text on either side."""


Filling = tuple[Marked, bool]
"""The text of a slot, and whether control tokens in an item's part of it are meant."""


@frozen
class Window:
    """The constant texts beside one slot, and the ids that the artifact has for them."""

    before: str
    place: Place
    """Where `before` begins; AFTER: with a control token."""
    lead: int
    """As in `Artifact`; 0 unless `before` is the whole first span."""
    ids_before: tuple[int, ...]
    after: str
    ids_after: tuple[int, ...]

    def expected(self, judge: TextEncoder, slot: Marked) -> list[int]:
        """Return the ids of the window with `slot` in it, encoded as one."""
        whole = joined([constant(self.before), slot, constant(self.after)])
        if self.place is Place.INSIDE:
            return judge.mixed(whole.text, whole.special, Context(Place.INSIDE))
        return reference(judge, whole, self.lead)

    def got(self, slot: Sequence[int]) -> list[int]:
        """Return the ids of the window, put together of the spans' and the slot's."""
        return [*self.ids_before, *slot, *self.ids_after]


Around = tuple[TextEncoder, Context, Window]
"""All that decides whether the ids around a slot are right, but for its filling: the encoder that is under
proof, what it is told of the texts beside the slot, and their ids.
"""


def windows(artifact: Artifact, judge: TextEncoder) -> Iterator[Window]:
    """Yield the window of each slot."""
    spans = artifact.spans
    for number in range(len(artifact.slots)):
        place, lead = (Place.INSIDE, 0) if number else (Place.START, artifact.lead)
        before, place, ids_before = _end(judge, spans[number], place, lead)
        after, ids_after = _beginning(judge, spans[number + 1])
        yield Window(before, place, 0 if place is not Place.START else lead, ids_before, after, ids_after)


def _end(judge: TextEncoder, span: Span, place: Place, lead: int) -> tuple[str, Place, tuple[int, ...]]:
    """Return the last part of a span that can be encoded by itself: from a control token on, if one is
    near.
    """
    for begin, found in _starts(judge, span.text, lead):
        ids = tuple(judge.constant(span.text[begin:], found))
        if span.ids[-len(ids) :] == ids:
            return span.text[begin:], found, ids
    return span.text, place, span.ids


def _starts(judge: TextEncoder, text: str, lead: int) -> Iterator[tuple[int, Place]]:
    far = max(0, len(text) - _REACH)
    for control in judge.controls(text):
        if control.begin >= max(far, lead):
            yield control.begin, Place.AFTER
    if far:
        yield from ((far + cut, Place.INSIDE) for cut in cuts_of(judge, text[far:], Place.INSIDE))


def _beginning(judge: TextEncoder, span: Span) -> tuple[str, tuple[int, ...]]:
    """Return the first part of a span that can be encoded by itself: up to a control token, if one is
    near.
    """
    for end in _ends(judge, span.text):
        ids = tuple(judge.constant(span.text[:end], Place.INSIDE))
        if span.ids[: len(ids)] == ids:
            return span.text[:end], ids
    return span.text, span.ids


def _ends(judge: TextEncoder, text: str) -> Iterator[int]:
    if len(text) > _REACH:
        for control in reversed(judge.controls(text)):
            if control.end <= _REACH:
                yield control.end
        yield from reversed(cuts_of(judge, text[:_REACH], Place.INSIDE))
