"""What a chat template does to the content of one message: what it takes away at the ends, and what it leaves
out around a content of which nothing is left. Found by trying; the proof says whether that is all.
"""

from __future__ import annotations

from fafo_build.bake.conversation import Conversation
from fafo_build.bake.form import Form, Turn
from fafo_build.errors import BakeError
from fafo_build.render.marks import Trim

_WHITE_SPACE = "".join(char for char in map(chr, range(0x3001)) if char.isspace())
"""All of it: nothing above U+3000 counts as white space."""

_TRIED_FIRST = " \n\t"


class Shown:
    """One message with a hole, shown by a form with contents that are tried out."""

    def __init__(self, talk: Conversation, form: Form, marks: dict[int, str], number: int) -> None:
        """`marks` are what stands in the messages with a hole, by their numbers."""
        self._talk = talk
        self._form = form
        self._marks = marks
        self._number = number
        self._mark = marks[number]
        self._before, _, self._after = self._render(self._mark).partition(self._mark)

    def trim(self) -> Trim:
        """Return what is taken away at the ends of the content.

        Raises `BakeError` when something else happens to it.
        """
        stripped = self._stripped(_TRIED_FIRST + self._form.trimmed)
        if any(char in _TRIED_FIRST for char in "".join(stripped)):
            stripped = self._stripped(dict.fromkeys(_WHITE_SPACE + self._form.trimmed))
        left, right = ("".join(sorted(side)) for side in stripped)
        return Trim(*(None if side == "".join(sorted(_WHITE_SPACE)) else side for side in (left, right)))

    def frame(self) -> tuple[str, str]:
        """Return the constant texts right before and after the content that are left out with it, when
        nothing is left of it.
        """
        empty = self._render("")
        same = next(
            (at for at, (a, b) in enumerate(zip(empty, self._before, strict=False)) if a != b),
            min(len(empty), len(self._before)),
        )
        rest = empty[same:]
        if not self._after.endswith(rest):
            return "", ""  # something else is shown instead: the proof names it
        return self._before[same:], self._after[: len(self._after) - len(rest)]

    def _stripped(self, chars: str | dict[str, None]) -> tuple[str, str]:
        left, right = "", ""
        for char in chars:
            shown = self._render(char + self._mark + char)
            found = [
                (begin, end)
                for begin in ("", char)
                for end in ("", char)
                if shown == self._before + begin + self._mark + end + self._after
            ]
            if not found:
                raise self._talk.error(
                    "the chat template changes the content of this message in a way that can't be repeated, "
                    f"as with the text {char + 'x' + char!a}",
                    self._number,
                    "use a simpler one: model.chat_template",
                )
            begin, end = found[0]
            left += char if not begin else ""
            right += char if not end else ""
        return left, right

    def _render(self, content: str) -> str:
        turns = self._talk.turns(self._marks)
        turns[self._number] = Turn(self._talk.roles[self._number], content)
        try:
            return self._form.render(turns)
        except BakeError as error:
            raise self._talk.error(
                f"with the text {content!a} in this message, {error.problems[0].message}",
                self._number,
                error.problems[0].cure,
            ) from error
