"""An artifact and the texts of its holes in, token ids out. The build proves this code, a run uses it."""

from __future__ import annotations

from collections.abc import Sequence

from fafo_build.bake.artifact import Artifact, Hole, Slot
from fafo_build.render.marks import Marked
from fafo_build.tokens.encoder import TextEncoder

Bounds = tuple[tuple[int, int], ...]
"""Per slot, where its ids begin and end (exclusive) within the suffix."""


class HeadMismatchError(ValueError):
    """A message doesn't begin as it did at the build."""


def hole_text(hole: Hole, content: Marked) -> Marked:
    """Return what stands in a hole, from the whole content of its message.

    Raises `HeadMismatchError` when the content doesn't begin with the hole's head.
    """
    shown = content.trimmed(hole.trim)
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

    def suffix(self, holes: Sequence[Marked]) -> tuple[tuple[int, ...], Bounds]:
        """Return the ids after the prefix, and where those of each slot are."""
        ids: list[int] = []
        bounds: list[tuple[int, int]] = []
        for slot, span in zip(self._artifact.slots, self._artifact.spans[1:], strict=True):
            text = _slot_text(slot, holes)
            begin = len(ids)
            ids += self._encoder.mixed(text.text, text.special)
            bounds.append((begin, len(ids)))
            ids += span.ids
        return tuple(ids), tuple(bounds)

    def whole(self, holes: Sequence[Marked]) -> Marked:
        """Return the conversation as the chat template renders it; the spans may hold control tokens."""
        parts = [_constant(self._artifact.spans[0].text)]
        for slot, span in zip(self._artifact.slots, self._artifact.spans[1:], strict=True):
            parts += (_slot_text(slot, holes), _constant(span.text))
        return joined(parts)

    def slot_texts(self, holes: Sequence[Marked]) -> list[Marked]:
        """Return what is encoded in each slot: glue and holes."""
        return [_slot_text(slot, holes) for slot in self._artifact.slots]


def reference(encoder: TextEncoder, whole: Marked) -> list[int]:
    """Return the ids of a whole conversation encoded once, without any span.

    That is the tokenizer's own encoding. Only where an item brings the text of a control token, the text
    between the control tokens that are meant is encoded as plain text.
    """
    meant = [
        (begin, end)
        for begin, end in encoder.controls(whole.text)
        if any(a <= begin and end <= b for a, b in whole.special)
    ]
    if len(meant) == len(encoder.controls(whole.text)):
        return encoder.canonical(whole.text)
    return encoder.mixed(whole.text, whole.special)


def joined(parts: Sequence[Marked]) -> Marked:
    """Return one text of several."""
    text = ""
    regions: list[tuple[int, int]] = []
    for part in parts:
        regions += ((begin + len(text), end + len(text)) for begin, end in part.special)
        text += part.text
    return Marked(text, tuple(regions))


def _constant(text: str) -> Marked:
    return Marked(text, ((0, len(text)),) if text else ())


def _slot_text(slot: Slot, holes: Sequence[Marked]) -> Marked:
    return joined([Marked(part) if isinstance(part, str) else holes[part] for part in slot.parts])
