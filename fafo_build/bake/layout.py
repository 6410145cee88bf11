"""From a rendered conversation to spans and slots: where the holes are, what the chat template does to
them, and where the constant text between them may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from fafo_build.bake.artifact import Hole, Slot, Span
from fafo_build.bake.chat import Chat, Turn
from fafo_build.errors import BakeError, Problem
from fafo_build.render.marks import Marked, Trim
from fafo_build.render.trace import Trace
from fafo_build.tokens.boundary import end_of_span, start_of_span
from fafo_build.tokens.encoder import TextEncoder

_TRIMS: tuple[Trim, ...] = ("none", "strip", "lstrip", "rstrip")
_PADDING = " \t\n"


@frozen
class Conversation:
    """The messages of a class, as far as they are known without an item."""

    name: str
    """Of the class."""
    file: str
    """Of the class, relative to the project."""
    roles: tuple[str, ...]
    traces: tuple[Trace, ...]
    """Per message."""
    templates: tuple[str, ...]
    """Per message, the name of its template."""

    def turns(self, fillings: dict[int, str]) -> list[Turn]:
        """Return the conversation with `fillings[message]` in place of the holes; every hole needs one."""
        return [
            Turn(role, trace.head + fillings[number] if trace.has_hole else trace.head)
            for number, (role, trace) in enumerate(zip(self.roles, self.traces, strict=True))
        ]

    @property
    def open(self) -> tuple[int, ...]:
        """The numbers of the messages with a hole."""
        return tuple(number for number, trace in enumerate(self.traces) if trace.has_hole)

    def error(self, message: str, number: int | None = None, cure: str | None = None) -> BakeError:
        """Return the error of this class, or of one of its messages."""
        field = f"class.{self.name}" + ("" if number is None else f".message[{number + 1}]")
        return BakeError(Problem(message, file=self.file, field=field, cure=cure))


@frozen
class Layout:
    """What an artifact says about where its ids come from."""

    spans: tuple[Span, ...]
    slots: tuple[Slot, ...]
    holes: tuple[Hole, ...]


def lay_out(talk: Conversation, chat: Chat, encoder: TextEncoder) -> Layout:
    """Find the spans and slots of a class.

    Raises `BakeError` when no message looks at the item, when the chat template drops, repeats or changes a
    message, or when no constant text is left for a prefix.
    """
    if not talk.open:
        raise talk.error(
            "no message looks at the item, so every row would ask the same",
            cure="put a column into a message: {{ item.NAME }}",
        )
    marks = _sentinels(talk)
    literals = _literals(talk, chat, marks)
    holes = tuple(_hole(talk, chat, marks, number) for number in talk.open)
    for at, hole in enumerate(holes):
        # Where white space at the end of a head is trimmed when nothing follows, it belongs to the hole.
        surplus = len(Marked(talk.traces[hole.message].head).trimmed(_left(hole.trim)).text) - len(hole.head)
        literals[at] = literals[at][: len(literals[at]) - surplus] if surplus else literals[at]
    spans, slots = _cut(literals, encoder)
    if not spans[0].ids:
        raise talk.error(
            "nothing constant comes before the first hole, so there is no prefix to bake",
            cure="begin the first message with constant text",
        )
    return Layout(spans, slots, holes)


def _sentinels(talk: Conversation) -> dict[int, str]:
    """Return per open message a word that stands nowhere else, and that no chat template treats in its own
    way.
    """
    text = "".join(trace.head for trace in talk.traces)
    stem = "fafohole"
    while stem in text:
        stem += "x"
    return {number: f"{stem}{number}e" for number in talk.open}


def _literals(talk: Conversation, chat: Chat, marks: dict[int, str]) -> list[str]:
    """Return the constant texts around the holes, in order; one more than there are holes."""
    rendered = chat.render(talk.turns(marks))
    literals = []
    for number, mark in marks.items():
        before, found, rendered = rendered.partition(mark)
        if not found or mark in rendered:
            what = "shows twice" if found else "drops or moves"
            raise talk.error(f"the chat template {what} the content of this message", number)
        literals.append(before)
    return [*literals, rendered]


def _hole(talk: Conversation, chat: Chat, marks: dict[int, str], number: int) -> Hole:
    trim = _trim(talk, chat, marks, number)
    head = talk.traces[number].head
    # Trimming on the right happens to head and item text together; the head's own part of it goes into the
    # hole.
    shown = Marked(head).trimmed(trim).text
    return Hole(number, shown, trim, talk.templates[number])


def _left(trim: Trim) -> Trim:
    return "lstrip" if trim in ("strip", "lstrip") else "none"


def _trim(talk: Conversation, chat: Chat, marks: dict[int, str], number: int) -> Trim:
    """Find out what the chat template does to white space around the content of a message."""

    def rendered(content: str) -> str:
        turns = talk.turns(marks)
        turns[number] = Turn(talk.roles[number], content)
        return chat.render(turns)

    mark = marks[number]
    before, _, after = rendered(mark).partition(mark)
    padded = rendered(_PADDING + mark + _PADDING)
    for trim in _TRIMS:
        if padded == before + Marked(_PADDING + mark + _PADDING).trimmed(trim).text + after:
            return trim
    raise talk.error(
        "the chat template changes the content of this message in a way that can't be repeated", number
    )


def _cut(literals: Sequence[str], encoder: TextEncoder) -> tuple[tuple[Span, ...], tuple[Slot, ...]]:
    """Cut the literals at stable places; what is left of them is glue. A literal without a span joins two
    slots.
    """
    end = end_of_span(encoder, literals[0])
    spans = [_span(encoder, literals[0][:end])]
    slots: list[Slot] = []
    parts: list[str | int] = [literals[0][end:]]
    for hole, literal in enumerate(literals[1:]):
        parts.append(hole)
        is_last = hole == len(literals) - 2
        begin = start_of_span(encoder, literal)
        end = len(literal) if is_last else begin + end_of_span(encoder, literal[begin:])
        if begin < end or is_last:
            slots.append(_slot([*parts, literal[:begin]]))
            spans.append(_span(encoder, literal[begin:end]))
            parts = [literal[end:]]
        else:
            parts.append(literal)
    return tuple(spans), tuple(slots)


def _span(encoder: TextEncoder, text: str) -> Span:
    return Span(text, tuple(encoder.canonical(text)))


def _slot(parts: Sequence[str | int]) -> Slot:
    return Slot(tuple(part for part in parts if part != ""))
