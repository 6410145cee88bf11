"""Where a constant text may be cut so that nothing beside it changes its ids.

A cut is at a control token, or between two pre-tokens such that at least one whole pre-token of the
constant text goes with the changing text ('glue'), and all probes show that the ids on the far side stay.
"""

from __future__ import annotations

import string

from fafo_build.tokens.encoder import TextEncoder

_NEIGHBOURS = (
    *string.printable,
    *"éßжя中한あ０٣²\u00a0\u3000\u2028\u200b\u200d\u0301\ufe0f\ufeff\u0000’“…🙂\U0001f1e6",
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


def end_of_span(encoder: TextEncoder, text: str) -> int:
    """Return where, in a constant text before a hole, the span ends; the rest is glue. 0 if there is no
    such place but its beginning.
    """
    controls = encoder.controls(text)
    start = controls[-1][1] if controls else 0
    tail = text[start:]
    for begin, _ in reversed(encoder.pieces(tail)):
        if begin and _holds_before(encoder, tail, begin):
            return start + begin
    return start


def start_of_span(encoder: TextEncoder, text: str) -> int:
    """Return where, in a constant text after a hole, the span begins; what precedes is glue. Its length if
    nowhere.
    """
    controls = encoder.controls(text)
    if controls:
        return controls[0][0]
    for _, end in encoder.pieces(text):
        if end < len(text) and _holds_after(encoder, text, end):
            return end
    return len(text)


def _holds_before(encoder: TextEncoder, text: str, cut: int) -> bool:
    head = encoder.plain(text[:cut])
    rest = text[cut:]
    return all(
        head + encoder.plain(rest + after) == encoder.plain(text + after) for after in ("", *_NEIGHBOURS)
    )


def _holds_after(encoder: TextEncoder, text: str, cut: int) -> bool:
    rest = encoder.plain(text[cut:])
    glue = text[:cut]
    return all(
        encoder.plain(before + glue) + rest == encoder.plain(before + text) for before in ("", *_NEIGHBOURS)
    )
