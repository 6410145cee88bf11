"""Makes text harmless and whole for people: what can't be seen, or commands a terminal, is shown escaped."""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
_KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends and tabs; and the joiners, which Persian, Hindi and emoji are written with."""


def visible(text: str) -> str:
    r"""Return a text with control and format characters, lone surrogates and Unicode's line ends escaped as
    in Python: `\x1b`, `\u202e`. Newlines and tabs stay.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def one_line(text: str) -> str:
    r"""Return a text with its newlines escaped too, as `\n`: where it stands in a line with others."""
    return visible(text).replace("\n", r"\n")


def _shown(char: str) -> str:
    if char.isprintable() or char in _KEPT or unicodedata.category(char) not in _HIDDEN:
        return char
    return char.encode("unicode_escape").decode("ascii")
