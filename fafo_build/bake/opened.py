"""A hole as its template writes it: which text looks at the item, and which is constant and only stands after
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from attrs import frozen

from fafo_build.bake.artifact import Hole
from fafo_build.bake.explanation import Part, Subject
from fafo_build.render.marks import Marked, Trim
from fafo_build.render.segments import Segment, segments, with_source
from fafo_build.render.trace import Trace, UnrenderableError, trace
from fafo_build.tokens.encoder import Place, TextEncoder


@frozen
class Opened:
    """What a hole looks like in its template."""

    hole: Hole
    parts: tuple[Part, ...]
    """Of kind `hole` and `late`; and `glue`, which is shown only together with an item's text."""
    blocks: tuple[Segment, ...]
    """Blocks that look at the item."""

    @property
    def begins(self) -> str:
        """The template's text at which the hole begins."""
        return next(part.text for part in self.parts if part.kind == "hole")


def joined(parts: list[Part], encoder: TextEncoder) -> Iterator[Part]:
    """Join neighbours of one kind, so that text beside text is counted as one."""
    for (kind, message), group in groupby(parts, key=lambda part: (part.kind, part.message)):
        found = list(group)
        text = "".join(part.text for part in found)
        counted = kind in ("glue", "late") and len(found) > 1
        yield Part(kind, text, count(encoder, text) if counted else found[0].tokens, message)


def count(encoder: TextEncoder, text: str) -> int:
    """Return how many tokens a text has that goes on from another."""
    return len(encoder.plain(text, Place.INSIDE))


def opened(subject: Subject, number: int) -> Opened:
    """Find the text of a hole in its template: everything from the first segment that looks at the item."""
    hole = subject.artifact.holes[number]
    cut = segments(subject.prompts, subject.prompts.messages[hole.message])
    begin = None if cut is None else _first_look(subject, hole.message, cut)
    parts = [_glue(subject, hole.before + _surplus(subject, hole))]
    if cut is None or begin is None:
        parts.append(Part("hole", f"‹hole {number + 1}›", None, hole.message))
    else:
        parts += _of_segments(subject, hole.message, cut, begin)
    parts.append(_glue(subject, hole.after))
    looking = cut[begin:] if cut is not None and begin is not None else ()
    return Opened(
        hole,
        tuple(joined([part for part in parts if part.text], subject.encoder)),
        tuple(segment for segment in looking if segment.looks and segment.inside.strip()),
    )


def _glue(subject: Subject, text: str) -> Part:
    return Part("glue", text, count(subject.encoder, text), None)


def _surplus(subject: Subject, hole: Hole) -> str:
    """Return the white space at the end of a message's constant beginning that is trimmed if no text
    follows.
    """
    head = trace(subject.prompts, hole.message, subject.declared.vars, subject.examples).head
    return Marked(head).trimmed(Trim(left=hole.trim.left)).text[len(hole.head) :]


def _of_segments(subject: Subject, message: int, cut: tuple[Segment, ...], begin: int) -> Iterator[Part]:
    for at, segment in enumerate(cut[begin:], begin):
        late = None if segment.looks else _rendered(subject, message, cut, at)
        if late is None:
            yield Part("hole", segment.source, None, message)
        else:
            yield Part("late", late, count(subject.encoder, late), message)


def _first_look(subject: Subject, message: int, cut: tuple[Segment, ...]) -> int | None:
    """Return the segment at which the rendering stops for want of an item."""
    for at, segment in enumerate(cut):
        if segment.looks:
            found = _trace(subject, message, cut[: at + 1])
            if found is not None and found.has_hole:
                return at
    return None


def _rendered(subject: Subject, message: int, cut: tuple[Segment, ...], at: int) -> str | None:
    """Return what a segment puts out for every item; None if that can't be told."""
    constant = [each for each in cut[:at] if not each.looks]
    before = _trace(subject, message, constant)
    found = _trace(subject, message, [*constant, cut[at]])
    if before is None or found is None or found.has_hole:
        return None
    return found.head[len(before.head) :]


def _trace(subject: Subject, message: int, cut: Sequence[Segment]) -> Trace | None:
    """Render a message that has these segments alone; None if they can't do without the others."""
    prompts = with_source(subject.prompts, message, "".join(segment.source for segment in cut))
    try:
        return trace(prompts, message, subject.declared.vars, subject.examples)
    except UnrenderableError:
        # Not the user's mistake: the whole message was rendered before, and only we left something out.
        return None
