"""From a rendered conversation to spans and slots: where the holes are, and where the constant text between
them may be cut. What a chat template does to a content is `shown`'s subject.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from fafo_build.bake.artifact import Hole, Slot, Span
from fafo_build.bake.conversation import Conversation
from fafo_build.bake.form import Form
from fafo_build.bake.shown import Shown
from fafo_build.render.marks import Marked, Trim
from fafo_build.tokens.boundary import end_of_span, start_of_span
from fafo_build.tokens.encoder import Place, TextEncoder


@frozen
class Layout:
    """What an artifact says about where its ids come from."""

    spans: tuple[Span, ...]
    slots: tuple[Slot, ...]
    holes: tuple[Hole, ...]
    lead: int


def lay_out(talk: Conversation, form: Form, encoder: TextEncoder) -> Layout:
    """Find the spans and slots of a class.

    Raises `BakeError` when no message looks at the item, when the form drops, repeats or changes a message,
    or when no constant text is left for a prefix.
    """
    if not talk.open:
        raise talk.error(
            "no message looks at the item, so every row would ask the same",
            cure="put a column into a message: {{ item.NAME }}",
        )
    marks = _sentinels(talk)
    literals, order = _literals(talk, form, marks)
    holes = tuple(_hole(talk, form, marks, number) for number in talk.open)
    for at, number in enumerate(order):
        hole = holes[talk.open.index(number)]
        surplus = _surplus(talk, hole)
        if surplus > len(literals[at]) or encoder.controls(hole.before) or encoder.controls(hole.after):
            raise talk.error(
                "the chat template leaves out more than white space when nothing is left of this message",
                number,
                "begin the message with constant text",
            )
        literals[at] = literals[at][: len(literals[at]) - surplus]
        literals[at + 1] = literals[at + 1][len(hole.after) :]
    spans, slots = _cut(literals, [talk.open.index(number) for number in order], len(form.lead), encoder)
    if not spans[0].ids:
        if not literals[0]:
            raise talk.error(
                "nothing constant comes before the first hole, so there is no prefix to bake",
                cure="begin the first message with constant text",
            )
        raise talk.error(
            "the item may change all tokens of the constant text before it, so there is no prefix to bake",
            cure="begin the first message with a special token of the model, or with more constant text",
        )
    return Layout(spans, slots, holes, len(form.lead))


def _sentinels(talk: Conversation) -> dict[int, str]:
    """Return per open message a word that stands nowhere else, and that no chat template treats in its own
    way.
    """
    text = "".join(trace.head for trace in talk.traces)
    stem = "fafohole"
    while stem in text:
        stem += "x"
    return {number: f"{stem}{number}e" for number in talk.open}


def _literals(talk: Conversation, form: Form, marks: dict[int, str]) -> tuple[list[str], list[int]]:
    """Return the constant texts around the holes, one more than there are holes; and the messages of the
    holes, in the order in which the form shows them.
    """
    rendered = form.render(talk.turns(marks))
    for number, mark in marks.items():
        times = rendered.count(mark)
        if times != 1:
            what = "leaves out or changes" if times == 0 else "shows more than once"
            raise talk.error(
                f"the chat template {what} the content of this message, and every row brings another",
                number,
                "take the item out of this message, or use another chat template: model.chat_template",
            )
    order = sorted(marks, key=lambda number: rendered.index(marks[number]))
    literals = []
    for number in order:
        before, _, rendered = rendered.partition(marks[number])
        literals.append(before)
    return [*literals, rendered], order


def _surplus(talk: Conversation, hole: Hole) -> int:
    """Return how much of the constant text before a hole goes with the hole, in characters: white space at
    the end of its head that is trimmed when nothing follows, and what is shown only if anything is.
    """
    left = Trim(left=hole.trim.left)
    return len(hole.before) + len(Marked(talk.traces[hole.message].head).trimmed(left).text) - len(hole.head)


def _hole(talk: Conversation, form: Form, marks: dict[int, str], number: int) -> Hole:
    shown = Shown(talk, form, marks, number)
    trim = shown.trim()
    # Trimming on the right happens to head and item text together; the head's own part of it goes into the
    # hole.
    head = Marked(talk.traces[number].head).trimmed(trim).text
    before, after = ("", "") if head else shown.frame()
    return Hole(number, head, trim, talk.templates[number], before, after)


def _cut(
    literals: Sequence[str], order: Sequence[int], lead: int, encoder: TextEncoder
) -> tuple[tuple[Span, ...], tuple[Slot, ...]]:
    """Cut the literals at stable places; what is left of them is glue. A literal without a span joins two
    slots. `order` has the hole after each literal but the last.
    """
    end = end_of_span(encoder, literals[0], Place.START, lead)
    first = literals[0][:end]
    spans = [Span(first, tuple(encoder.constant(first, Place.START, lead)))]
    slots: list[Slot] = []
    parts: list[str | int] = [literals[0][end:]]
    for at, literal in enumerate(literals[1:]):
        parts.append(order[at])
        is_last = at == len(literals) - 2
        begin = start_of_span(encoder, literal)
        end = len(literal) if is_last else begin + end_of_span(encoder, literal[begin:], Place.INSIDE)
        if begin < end or is_last:
            slots.append(_slot([*parts, literal[:begin]]))
            text = literal[begin:end]
            spans.append(Span(text, tuple(encoder.constant(text, Place.INSIDE))))
            parts = [literal[end:]]
        else:
            parts.append(literal)
    return tuple(spans), tuple(slots)


def _slot(parts: Sequence[str | int]) -> Slot:
    return Slot(tuple(part for part in parts if part != ""))
