"""An artifact and the texts of its holes in, token ids out. The build proves this code, a run uses it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fafo_build.bake.artifact import Artifact, Hole, Slot
from fafo_build.render.marks import Marked
from fafo_build.tokens.encoder import Context, Place, TextEncoder

Bounds = tuple[tuple[int, int], ...]
"""Per slot, where its ids begin and end (exclusive) within the suffix."""


class HeadMismatchError(ValueError):
    """A message doesn't begin as it did at the build."""


def hole_text(hole: Hole, content: Marked) -> Marked:
    """Return what stands in a hole, from the whole content of its message.

    Raises `HeadMismatchError` when the content doesn't begin with the hole's head.
    """
    shown = content.trimmed(hole.trim)
    if shown.text and (hole.before or hole.after):
        shown = joined([Marked(hole.before), shown, Marked(hole.after)])
    if not shown.text.startswith(hole.head):
        raise HeadMismatchError(f"message {hole.message} doesn't begin as at the build")
    return shown.part(len(hole.head), len(shown.text))


class Assembler:
    """Puts prompts of one artifact together. `holes` is always one text per hole of the artifact, in
    order.
    """

    def __init__(self, artifact: Artifact, encoder: TextEncoder) -> None:
        self._artifact = artifact
        self._encoder = encoder
        texts = pairwise(span.text for span in artifact.spans)
        self.contexts = tuple(
            encoder.context(*pair, lead=0 if number else artifact.lead) for number, pair in enumerate(texts)
        )
        """Per slot, what stands beside its text."""
        self._steps = list(zip(artifact.slots, self.contexts, artifact.spans[1:], strict=True))

    def suffix(self, holes: Sequence[Marked]) -> tuple[tuple[int, ...], Bounds]:
        """Return the ids after the prefix, and where those of each slot are."""
        (found,) = self.suffixes([holes])
        return found

    def suffixes(self, many: Sequence[Sequence[Marked]]) -> list[tuple[tuple[int, ...], Bounds]]:
        """Do as `suffix` does for many prompts, and ask the tokenizer once per slot."""
        found: list[tuple[list[int], list[tuple[int, int]]]] = [([], []) for _ in many]
        for slot, context, span in self._steps:
            texts = [_slot_text(slot, holes) for holes in many]
            encoded = self._encoder.mixed_each([(text.text, text.special) for text in texts], context)
            for (ids, bounds), between in zip(found, encoded, strict=True):
                begin = len(ids)
                ids += between
                bounds.append((begin, len(ids)))
                ids += span.ids
        return [(tuple(ids), tuple(bounds)) for ids, bounds in found]

    def slot_ids(self, number: int, text: Marked) -> list[int]:
        """Return the ids of slot `number` with that text."""
        return self._encoder.mixed(text.text, text.special, self.contexts[number])

    def whole(self, holes: Sequence[Marked]) -> Marked:
        """Return the conversation as the chat template renders it; the spans may hold control tokens."""
        parts = [constant(self._artifact.spans[0].text)]
        for slot, span in zip(self._artifact.slots, self._artifact.spans[1:], strict=True):
            parts += (_slot_text(slot, holes), constant(span.text))
        return joined(parts)

    def slot_texts(self, holes: Sequence[Marked]) -> list[Marked]:
        """Return what is encoded in each slot: glue and holes."""
        return [_slot_text(slot, holes) for slot in self._artifact.slots]


def glue_tokens(artifact: Artifact, encoder: TextEncoder) -> int:
    """Return how many constant tokens before the first hole go with each item, since no cut lies nearer to
    it; as encoded alone.
    """
    first = artifact.slots[0].parts[0]
    return 0 if isinstance(first, int) else len(encoder.plain(first, Place.INSIDE))


def reference(encoder: TextEncoder, whole: Marked, lead: int = 0) -> list[int]:
    """Return the ids of a whole conversation encoded once, without any span; `lead` as in `Artifact`.

    That is the tokenizer's own encoding. Only where an item brings the text of a control token, the text
    between the control tokens that are meant is encoded as plain text.
    """
    meant = encoder.controls(whole.text, whole.special)
    if not lead and len(meant) == len(encoder.controls(whole.text)):
        ids = encoder.canonical(whole.text)
        # A normalizer can make the text of a control token of something else.
        if encoder.count_control(ids) == encoder.count_control(control.id for control in meant):
            return ids
    return encoder.mixed(whole.text, whole.special, Context(Place.START, lead=lead))


def joined(parts: Sequence[Marked]) -> Marked:
    """Return one text of several."""
    if not any(part.special for part in parts):
        return Marked("".join(part.text for part in parts))
    text = ""
    regions: list[tuple[int, int]] = []
    for part in parts:
        regions += ((begin + len(text), end + len(text)) for begin, end in part.special)
        text += part.text
    return Marked(text, tuple(regions))


def constant(text: str) -> Marked:
    """Return a constant text: all special tokens in it are meant."""
    return Marked(text, ((0, len(text)),) if text else ())


def _slot_text(slot: Slot, holes: Sequence[Marked]) -> Marked:
    return joined([Marked(part) if isinstance(part, str) else holes[part] for part in slot.parts])
