"""Where a constant text may be cut so that nothing beside it changes its ids.

A cut is at a control token, or between two tokens such that the constant text on the near side of it goes
with the changing text ('glue'), and all probes show that the ids on the far side stay. Between two tokens of
one pre-token (SentencePiece doesn't split text before it looks for tokens) there must also be no token in
the vocabulary that could hold the cut together.
"""

from __future__ import annotations

import string
import unicodedata

from tokenizers import Encoding

from fafo_build.tokens.encoder import Place, TextEncoder

_NEIGHBOURS = (
    "",
    *string.printable,
    *"éßжя中한あ０٣²\u00a0\u3000\u2028\u200b\u200d\u0301\u0323\u1161\u11a8\ufe0f\ufeff\u0000’“…🙂\U0001f1e6",
    *(
        "ll",
        "ve",
        "re",
        "LL",
        "'s",
        "'ll",
        " a",
        "  ",
        "\n\n",
        " \n",
        "\r\n",
        "\t\n",
        "123",
        "1234",
        "...",
        "//",
        "a" * 40,
    ),
)
"""What may touch a cut: any ASCII character, one of each odder kind, and what pre-tokenizers look for
together.
"""

_WINDOW = 32
"""Tokens of constant text on the far side of a cut that are encoded anew with each probe; what lies beyond
them is shown once not to matter.
"""


def end_of_span(encoder: TextEncoder, text: str, place: Place = Place.START, lead: int = 0) -> int:
    """Return where, in a constant text before a hole, the span ends; the rest is glue. 0 if there is no
    such place but its beginning.

    `place` says where the text itself begins; `lead` as in `encoder.Context`.
    """
    controls = encoder.controls(text)
    start = controls[-1].end if controls else 0
    tail, place = text[start:], Place.AFTER if start > lead else place
    pieces = encoder.pieces(tail, place)
    ids, cuts = pieces.ids, _cuts(encoder, tail, pieces)
    for number in reversed(range(len(cuts))):
        begin = _settled(encoder, tail, cuts[number - _WINDOW], place, ids) if number >= _WINDOW else 0
        seen = Place.INSIDE if begin else place
        if _shields(encoder, tail[cuts[number] :]) and _holds_before(
            encoder, tail[begin:], cuts[number] - begin, seen
        ):
            return start + cuts[number]
    return start


def start_of_span(encoder: TextEncoder, text: str) -> int:
    """Return where, in a constant text after a hole, the span begins; what precedes is glue. Its length if
    nowhere.
    """
    controls = encoder.controls(text)
    if controls:
        return controls[0].begin
    pieces = encoder.pieces(text, Place.INSIDE)
    ids, cuts = pieces.ids, _cuts(encoder, text, pieces)
    for number, cut in enumerate(cuts):
        far = number + _WINDOW
        end = _settled(encoder, text, cuts[far], Place.INSIDE, ids) if far < len(cuts) else 0
        if _shields(encoder, text[:cut]) and _holds_after(encoder, text[: end or len(text)], cut):
            return cut
    return len(text)


def cuts_of(encoder: TextEncoder, text: str, place: Place) -> list[int]:
    """Return the places between two tokens of `text`, in characters, rising, that may be cuts."""
    return _cuts(encoder, text, encoder.pieces(text, place))


def _cuts(encoder: TextEncoder, text: str, pieces: Encoding) -> list[int]:
    # Each of these is made anew whenever it is asked for.
    ids, offsets, words, tokens = pieces.ids, pieces.offsets, pieces.word_ids, pieces.tokens
    found = []
    for at in range(1, len(ids)):
        cut = offsets[at][0]
        if not offsets[at - 1][1] <= cut < len(text) or cut == 0:
            continue
        # A mark belongs to the character before it, and a normalizer may make one of both.
        if unicodedata.category(text[cut])[0] == "M":
            continue
        if words[at - 1] != words[at]:
            found.append(cut)
            continue
        # Some tokenizers make one unknown token of several.
        unknown = ids[at - 1] == ids[at] == encoder.unknown_id
        if not unknown and not encoder.may_join(tokens[at - 1], tokens[at]):
            found.append(cut)
    return found


def _shields(encoder: TextEncoder, glue: str) -> bool:
    """Tell whether no control token on the other side of the hole, or in it, can take white space beyond
    `glue`.
    """
    return not encoder.eats_space or bool(glue.strip())


def _settled(encoder: TextEncoder, text: str, cut: int, place: Place, ids: list[int]) -> int:
    """Return `cut` if encoding both sides of it by themselves gives the ids of the text, else 0."""
    apart = encoder.plain(text[:cut], place) + encoder.plain(text[cut:], Place.INSIDE)
    return cut if apart == ids else 0


def _holds_before(encoder: TextEncoder, text: str, cut: int, place: Place) -> bool:
    known = ("before", text, cut, place)
    if known not in encoder.cuts:
        span, glue = encoder.plain(text[:cut], place), text[cut:]
        encoder.cuts[known] = all(
            span + encoder.plain(glue + after, Place.INSIDE) == encoder.plain(text + after, place)
            for after in _NEIGHBOURS
        )
    return encoder.cuts[known]


def _holds_after(encoder: TextEncoder, text: str, cut: int) -> bool:
    known = ("after", text, cut, Place.INSIDE)
    if known not in encoder.cuts:
        glue, span = text[:cut], encoder.plain(text[cut:], Place.INSIDE)
        encoder.cuts[known] = all(
            encoder.plain(before + glue, place) + span == encoder.plain(before + text, place)
            for before in _NEIGHBOURS
            for place in (Place.INSIDE, Place.AFTER)
        )
    return encoder.cuts[known]
