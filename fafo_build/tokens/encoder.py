"""Text to token ids with the `tokenizers` library alone. Knows nothing of templates, classes or models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from attrs import frozen
from tokenizers import Encoding, Tokenizer

from fafo_build.tokens.plain import (
    flat,
    going_on,
    is_control,
    marks_only_the_first,
    unknown_id,
    without_control,
)

# White space as the regex engine of `tokenizers` knows it (Unicode's White_Space). Python's counts four more.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Place(Enum):
    """Where a piece of text stands: some tokenizers put a mark before a text, or before each of its parts."""

    START = "start"
    """The whole text begins with it."""
    AFTER = "after"
    """Right after a control token."""
    INSIDE = "inside"
    """It goes on where a cut was made."""


@frozen
class Context:
    """What stands beside a piece of text that is encoded by itself."""

    place: Place = Place.AFTER
    eaten_left: bool = False
    """Whether the control token before it takes the white space at its beginning."""
    eaten_right: bool = False
    """Whether the control token after it takes the white space at its end."""
    lead: int = 0
    """Characters at the beginning of the text that stand for tokens which the tokenizer itself puts before
    every text: for it the text starts after them."""


_BESIDE_CONTROL = Context()


@frozen
class Control:
    """A control token in a text: its id, and where it stands, with the white space that it takes.

    Begin and end (exclusive) are in characters.
    """

    id: int
    begin: int
    end: int
    eats_left: bool
    eats_right: bool


class TextEncoder:
    """Encodes text as a model's tokenizer does, with or without special tokens in it.

    A *control token* is an added token with a meaning of its own: one that the tokenizer calls special, or
    whose text isn't only white space (`<think>`). Tokens for runs of spaces are text.
    """

    def __init__(self, tokenizer_json: str | bytes) -> None:
        text = tokenizer_json if isinstance(tokenizer_json, str) else tokenizer_json.decode("utf-8")
        self._content = json.loads(text)
        self._text = text
        self._tokens = {
            token["content"]: token for token in self._content["added_tokens"] if is_control(token)
        }
        self.control: dict[str, int] = {content: token["id"] for content, token in self._tokens.items()}
        """Text to id."""
        self.unknown_id = unknown_id(self._content["model"])
        """The id that stands for text which the vocabulary doesn't know; None if there is none."""
        self.control_ids = frozenset(self.control.values()) - {self.unknown_id}
        """The ids that text of an item must never become. That for unknown text is none of them."""
        self.eats_space = any(token["lstrip"] or token["rstrip"] for token in self._tokens.values())
        """Whether some control token takes the white space beside it."""
        normalizes = bool(flat(self._content.get("normalizer"), "normalizers"))
        self.late = [token for token, given in self._tokens.items() if normalizes and given["normalized"]]
        """The control tokens that are looked for in what normalizing makes of a text."""
        self.cuts: dict[tuple[str, str, int, Place], bool] = {}
        """What `boundary` has found out: whether a cut of a text holds, on one side. Classes end alike."""
        longest_first = sorted(self.control, key=lambda token: (-len(token), token))
        self._find = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _canonical(self) -> Tokenizer:
        return _tokenizer(self._text)

    @cached_property
    def _bare(self) -> dict[str, Any]:
        return without_control(self._content)

    @cached_property
    def _plain(self) -> Tokenizer:
        return _tokenizer(json.dumps(self._bare))

    @cached_property
    def _inside(self) -> Tokenizer:
        bare = going_on(self._bare)
        return self._plain if bare is self._bare else _tokenizer(json.dumps(bare))

    @cached_property
    def _after(self) -> Tokenizer:
        return self._inside if marks_only_the_first(self._content) else self._plain

    def _at(self, place: Place) -> Tokenizer:
        if place is Place.AFTER:
            return self._after
        return self._plain if place is Place.START else self._inside

    def pieces(self, text: str, place: Place = Place.AFTER) -> Encoding:
        """Return what `plain` makes of `text`, with the place in it of every token."""
        return self._at(place).encode(text, add_special_tokens=False)

    def plain(self, text: str, place: Place = Place.AFTER) -> list[int]:
        """Return the ids of `text`, in which nothing is a control token."""
        # As in `mixed_each`, so that what a build proves is what a run does.
        (encoding,) = self._at(place).encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def canonical(self, text: str) -> list[int]:
        """Return the ids of a whole text as the model's tokenizer gives them, control tokens included, none
        added.
        """
        ids: list[int] = self._canonical.encode(text, add_special_tokens=False).ids
        return ids

    def mixed(
        self, text: str, special: Iterable[tuple[int, int]], context: Context = _BESIDE_CONTROL
    ) -> list[int]:
        """Return the ids of `text`, in which control tokens are meant only within the regions `special`.

        A region is begin and end (exclusive), in characters; they rise. Plain text that touches is encoded
        as one. `context` says what stands beside the text.
        """
        if not special and not context.eaten_left and not context.eaten_right:
            return self.plain(text, context.place) if text else []
        ids: list[int] = []
        begin, place = 0, context.place
        if context.eaten_left:
            begin = _after_space(text, 0)
        for control in self._controls(text, special):
            if begin < control.begin:
                ids += self.plain(text[begin : control.begin], place)
            ids.append(control.id)
            begin = max(begin, control.end)
            place = Place.START if begin <= context.lead else Place.AFTER
        end = max(begin, _before_space(text, len(text))) if context.eaten_right else len(text)
        return ids + self.plain(text[begin:end], place) if begin < end else ids

    def mixed_each(
        self, texts: Sequence[tuple[str, Sequence[tuple[int, int]]]], context: Context = _BESIDE_CONTROL
    ) -> list[list[int]]:
        """Return what `mixed` gives for each text with its regions.

        Where no control token comes in, the tokenizer is asked once for all: that takes a quarter less time,
        and other threads don't get in between.
        """
        if context.eaten_left or context.eaten_right or len(texts) == 1:
            return [self.mixed(text, special, context) for text, special in texts]
        together = [text for text, special in texts if text and not special]
        # Batches and single texts take the same way through the library, but for the offsets.
        encodings = self._at(context.place).encode_batch_fast(together, add_special_tokens=False)
        plain = iter(encodings)
        return [
            next(plain).ids if text and not special else self.mixed(text, special, context)
            for text, special in texts
        ]

    def controls(self, text: str, special: Iterable[tuple[int, int]] | None = None) -> list[Control]:
        """Return the control tokens of `text`, in order; those in the regions `special` if they are given."""
        return list(self._controls(text, ((0, len(text)),) if special is None else special))

    def count_control(self, ids: Iterable[int]) -> int:
        """Return how many of the ids are those of control tokens."""
        return sum(map(self.control_ids.__contains__, ids))

    def _controls(self, text: str, special: Iterable[tuple[int, int]]) -> Iterator[Control]:
        for begin, end in special:
            for match in self._find.finditer(text, begin, end):
                token = self._tokens[match.group()]
                eats_left, eats_right = token["lstrip"], token["rstrip"]
                yield Control(
                    token["id"],
                    _before_space(text, match.start()) if eats_left else match.start(),
                    _after_space(text, match.end()) if eats_right else match.end(),
                    eats_left,
                    eats_right,
                )

    def leak(self) -> str | None:
        """Return a control token whose text doesn't stay plain where it should, None if there is none."""
        for token in self.control:
            for place in Place:
                if self.count_control(self.plain(f"{token}a {token}\n{token}{token}", place)):
                    return token
        return None

    def context(self, before: str, after: str, lead: int = 0) -> Context:
        """Return what stands beside a text between the constant texts `before` and `after`; of `before` the
        first `lead` characters are what the tokenizer puts before every text.
        """
        left, right = self.controls(before), self.controls(after)
        touches = bool(left) and left[-1].end == len(before)
        place = Place.AFTER if touches else Place.INSIDE
        if len(before) <= lead:
            place = Place.START
        eaten_right = bool(right) and right[0].begin == 0 and right[0].eats_left
        return Context(place, touches and left[-1].eats_right, eaten_right)

    def constant(self, text: str, place: Place, lead: int = 0) -> list[int]:
        """Return the ids of a constant text, in which all control tokens are meant. `lead`: see `Context`."""
        return self.mixed(text, ((0, len(text)),), Context(place, lead=lead))

    def may_join(self, left: str, right: str) -> bool:
        """Tell whether the tokens `left` and `right`, of one word, may become others beside other text.

        Where no token has the end of the one beside the beginning of the other, a tokenizer that merges can't
        make one of what is on both sides. Unigram adds up scores from the beginning of the word on: how the
        sum is rounded decides between ways that score the same (`00` and `0`, `0` and `00`), so any text
        before them may change them.
        """
        if self._content["model"]["type"] == "Unigram":
            return True
        # A byte stands for a character that no token has.
        ends = not _BYTE.fullmatch(left) and not _BYTE.fullmatch(right)
        pair = left[-1:] + right[:1]
        if ends and pair not in self._joined:
            self._joined[pair] = pair in self._spelled
        return ends and self._joined[pair]

    @cached_property
    def _joined(self) -> dict[str, bool]:
        return {}

    @cached_property
    def _spelled(self) -> str:
        vocabulary = self._content["model"]["vocab"]
        texts = (entry if isinstance(entry, str) else entry[0] for entry in vocabulary)
        return "\n".join(text for text in texts if text not in self.control)

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """Return the text of ids, with or without the control tokens among them."""
        left_out = set() if control else set(self.control.values())
        kept = [token for token in ids if token not in left_out]
        return str(self._canonical.decode(kept, skip_special_tokens=False))

    def one_bos(self) -> int | None:
        """Return the id that the tokenizer puts before every text by itself, if it does: the model wants it
        once.
        """
        with_added = self._canonical.encode("x", add_special_tokens=True).ids
        without = self.canonical("x")
        extra = len(with_added) - len(without)
        return int(with_added[0]) if extra > 0 and list(with_added[:1]) != without[:1] else None


def _before_space(text: str, end: int) -> int:
    """Return where the white space before `end` begins."""
    return len(text[:end].rstrip(_SPACE))


def _after_space(text: str, begin: int) -> int:
    """Return where the white space from `begin` on ends."""
    return len(text) - len(text[begin:].lstrip(_SPACE))


def _tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
