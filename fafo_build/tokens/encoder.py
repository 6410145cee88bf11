"""Text to token ids with the `tokenizers` library alone. Knows nothing of templates, classes or models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer


class TextEncoder:
    """Encodes text as a model's tokenizer does, with or without special tokens in it.

    A *control token* is an added token with a meaning of its own: one that the tokenizer calls special, or
    whose text isn't only white space (`<think>`). Tokens for runs of spaces are text.
    """

    def __init__(self, tokenizer_json: str | bytes) -> None:
        text = tokenizer_json if isinstance(tokenizer_json, str) else tokenizer_json.decode("utf-8")
        content = json.loads(text)
        self._canonical = _tokenizer(text)
        self.control: dict[str, int] = {
            token["content"]: token["id"] for token in content["added_tokens"] if _is_control(token)
        }
        """Text to id."""
        self._content = content
        longest_first = sorted(self.control, key=lambda token: (-len(token), token))
        self._find = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _plain(self) -> Tokenizer:
        # Its own object, since `encode_special_tokens` is a switch on the whole tokenizer. It leaves alone
        # only what is called special, so all control tokens are called so here; their ids stay.
        content = dict(self._content)
        content["added_tokens"] = [
            {**token, "special": True} if token["content"] in self.control else token
            for token in content["added_tokens"]
        ]
        tokenizer = _tokenizer(json.dumps(content))
        tokenizer.encode_special_tokens = True
        return tokenizer

    def plain(self, text: str) -> list[int]:
        """Return the ids of `text`, in which nothing is a control token."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def canonical(self, text: str) -> list[int]:
        """Return the ids of `text` as the model's tokenizer gives them, control tokens included, none
        added.
        """
        return list(self._canonical.encode(text, add_special_tokens=False).ids)

    def mixed(self, text: str, special: Iterable[tuple[int, int]]) -> list[int]:
        """Return the ids of `text`, in which control tokens are meant only within the regions `special`.

        A region is begin and end (exclusive), in characters; they rise. Plain text that touches is encoded
        as one.
        """
        ids: list[int] = []
        begin = 0
        for start, end, token in self._controls(text, special):
            ids += self.plain(text[begin:start]) if begin < start else ()
            ids.append(self.control[token])
            begin = end
        return ids + self.plain(text[begin:]) if begin < len(text) else ids

    def _controls(self, text: str, special: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
        for begin, end in special:
            for match in self._find.finditer(text, begin, end):
                yield match.start(), match.end(), match.group()

    def controls(self, text: str) -> list[tuple[int, int]]:
        """Return where control tokens stand in `text`, as begin and end (exclusive) in characters."""
        return [match.span() for match in self._find.finditer(text)]

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """Return the text of ids, with or without the control tokens among them."""
        left_out = set() if control else set(self.control.values())
        kept = [token for token in ids if token not in left_out]
        return str(self._canonical.decode(kept, skip_special_tokens=False))

    def pieces(self, text: str) -> list[tuple[int, int]]:
        """Return the pre-tokens of `text`: begin and end (exclusive), in characters. No control token is
        looked for.
        """
        splitter = self._canonical.pre_tokenizer
        if splitter is None or not text:
            return [(0, len(text))] if text else []
        return [span for _, span in splitter.pre_tokenize_str(text)]

    def one_bos(self) -> int | None:
        """Return the id that the tokenizer puts before every text by itself, if it does: the model wants it
        once.
        """
        with_added = self._canonical.encode("x", add_special_tokens=True).ids
        without = self.canonical("x")
        extra = len(with_added) - len(without)
        return int(with_added[0]) if extra > 0 and list(with_added[:1]) != without[:1] else None


def _tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_control(token: dict[str, Any]) -> bool:
    return bool(token["special"]) or not token["content"].isspace()
