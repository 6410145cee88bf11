"""Which parts of a rendered text may become special tokens: marks around them that no row can forge."""

from __future__ import annotations

import re
import secrets
from typing import Any

from attrs import frozen

Regions = tuple[tuple[int, int], ...]
"""Begin and end (exclusive), in characters, rising, not touching each other's inside."""

_DIGITS = 40


class BrokenMarkError(ValueError):
    """A filter after `hole(special_tokens=true)` cut or changed what it had marked."""


@frozen
class Trim:
    """What a chat template takes away at the two ends of a content."""

    left: str | None = ""
    """These characters; None is all white space, as Python's `str.strip` means it."""
    right: str | None = ""


@frozen
class Marked:
    """A text without marks, and the parts of it that may become special tokens."""

    text: str
    special: Regions = ()

    def trimmed(self, trim: Trim) -> Marked:
        """Return what is left when a chat template trims this content."""
        if trim.left == "" and trim.right == "":
            return self
        begin = len(self.text) - len(self.text.lstrip(trim.left))
        return self.part(begin, max(begin, len(self.text.rstrip(trim.right))))

    def part(self, begin: int, end: int) -> Marked:
        """Return the text from `begin` to `end` (exclusive), in characters."""
        if not self.special:
            return Marked(self.text[begin:end])
        inside = ((max(a, begin) - begin, min(b, end) - begin) for a, b in self.special)
        return Marked(self.text[begin:end], tuple((a, b) for a, b in inside if a < b))


class Marks:
    """The marks of one renderer. Their number is drawn anew for each, so a row can't contain it."""

    def __init__(self) -> None:
        # Digits and private-use characters: letter case and HTML escapes don't change them.
        number = str(secrets.randbelow(10**_DIGITS)).zfill(_DIGITS)
        self._open = f"\ue000{number}\ue001"
        self._close = f"\ue000{number}\ue002"
        self._any = f"\ue000{number}(\ue001|\ue002)"
        self._torn = number[: _DIGITS // 2], number[_DIGITS // 2 :]

    def hole(self, value: Any, special_tokens: bool = False) -> str:
        """Return the text of `value`, marked if it may become special tokens: the filter `hole`."""
        # What reads artifacts needs `Trim` alone, and no Jinja.
        from fafo_build.render.values import printable

        text = str(printable(value))
        return f"{self._open}{text}{self._close}" if special_tokens else text

    def read(self, rendered: str) -> Marked:
        """Take the marks out of a rendered text.

        Raises `BrokenMarkError` when marks aren't in pairs any more.
        """
        if self._torn[0] not in rendered and self._torn[1] not in rendered:
            return Marked(rendered)
        pieces = re.split(self._any, rendered)
        text, regions, begin = pieces[0], [], None
        for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            if (mark == "\ue001") == (begin is not None):
                raise BrokenMarkError("hole(...) must be the last filter")
            if begin is None:
                begin = len(text)
            else:
                regions.append((begin, len(text)))
                begin = None
            text += piece
        if begin is not None or any(half in text for half in self._torn):
            raise BrokenMarkError("hole(...) must be the last filter")
        return Marked(text, tuple(region for region in regions if region[0] < region[1]))
