"""One baked class of one model beside a judge of its own: what the ids of a row must be, and what they are.

The judge shares no code with what it judges. It takes the model's own tokenizer, under other names for the
control tokens: names that no item holds. With these in the chat template's texts, and none in an item's, one
encoding of the whole conversation is right by construction, whatever the family does at a control token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.compile import ReadyModel
from fafo_run.prompt import Prompt, PromptEncoder
from tests.unit.bake_kit import bake, canonical
from tests.vocabularies import Content, renamed

Row = Mapping[str, str]

CLASS = (
    ("user", "{{ item.a }} is the fact.\nSay {{ item.b }}!"),
    ("assistant", "Fact: {{ item.c }}"),
    ("user", "A pre{{ item.d }}{{ item.a }} 12"),
)
"""Holes at the start, in the middle and at the end of messages, several in one, beside what sticks to it."""
FIELDS = "abcd"
HARMLESS = dict.fromkeys(FIELDS, "x")


class Judge:
    """Knows the right ids of a conversation from its texts."""

    def __init__(self, model: ReadyModel) -> None:
        content: Content = json.loads(model.loaded.tokenizer.backend_tokenizer.to_str())
        tokens = [token for token in content["added_tokens"] if not token["content"].isspace()]
        self.control = {token["content"]: token["id"] for token in tokens}
        unknown = model.loaded.tokenizer.unk_token_id
        self.unknown = [token for token, number in self.control.items() if number == unknown]
        """What stands for text that the vocabulary doesn't know, if it has such a token."""
        self._counted = set(self.control.values()) - {unknown}
        self._names = {token: _hidden(number) for token, number in self.control.items()}
        self._tokenizer = Tokenizer.from_str(json.dumps(renamed(content, self._names)))
        self._find = re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))
        self._model = model
        marks = [f"fafomark{number}e" for number in range(len(CLASS))]
        marked = self._render([(role, mark) for (role, _), mark in zip(CLASS, marks, strict=True)])
        self._constant = re.split("|".join(marks), marked)

    def ids(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Return the ids of a conversation in whose contents nothing is a control token."""
        shown = "".join(
            part if number % 2 else self._find.sub(lambda match: self._names[match.group()], part)
            for number, part in enumerate(self._parts(turns))
        )
        return list(self._tokenizer.encode(shown, add_special_tokens=False).ids)

    def finds(self, ids: Sequence[int]) -> list[int]:
        """Return the ids among `ids` of control tokens, that for unknown text included."""
        return [token for token in ids if token in self.control.values()]

    def count(self, ids: Sequence[int]) -> int:
        """Return how many control tokens are among `ids`. What a vocabulary doesn't know counts as text."""
        return sum(token in self._counted for token in ids)

    def _parts(self, turns: Sequence[tuple[str, str]]) -> list[str]:
        """Return the rendered conversation, as the chat template's text and contents by turns."""
        parts = [""] * (2 * len(turns) + 1)
        parts[::2] = self._constant
        whole = self._render(turns)
        for change in (str, str.strip):
            parts[1::2] = [change(content) for _, content in turns]
            if "".join(parts) == whole:
                return parts
        raise AssertionError(f"the chat template shows the contents otherwise: {whole!r}")

    def _render(self, turns: Sequence[tuple[str, str]]) -> str:
        loaded = self._model.loaded
        messages = [{"role": role, "content": content} for role, content in turns]
        return str(
            loaded.tokenizer.apply_chat_template(
                messages, chat_template=loaded.chat_template, tokenize=False, add_generation_prompt=True
            )
        )


class Bench:
    """A class, its artifact and the judge of its prompts."""

    def __init__(self, root: Path, model: ReadyModel) -> None:
        self.model = model
        self.judge = Judge(model)
        self.artifact = bake(root, *CLASS, model=model)
        self._harmless = self.judge.count(canonical(turns(HARMLESS), model=model))
        self._encoder = PromptEncoder(self.artifact, model.encoder)

    def check(self, rows: Sequence[Row], artifact: Artifact | None = None) -> None:
        """Raise `AssertionError` unless the ids of `rows` are right, encoded as a run does: together."""
        encoder = PromptEncoder(artifact, self.model.encoder) if artifact else self._encoder
        for row, prompt in zip(rows, encoder.encode_each((row, "rows", "1") for row in rows), strict=True):
            assert isinstance(prompt, Prompt)
            self._check(row, [*encoder.prefix, *prompt.suffix])

    def _check(self, row: Row, got: list[int]) -> None:
        assert self.judge.count(got) == self._harmless, "the item's text becomes a control token"
        want = self.judge.ids(turns(row))
        assert got == want, self._difference(got, want)
        users = canonical(turns(row), model=self.model)
        if users != got:
            # Where the user's way sees fewer or more control tokens, some are the item's own. That for text
            # the vocabulary doesn't know is no more than such text is: beside some, it is one with it.
            seen = self.judge.finds(users) != self.judge.finds(got)
            assert seen or self._may_hold(row, self.judge.unknown), self._difference(got, users)
            assert self._may_hold(row, self.judge.control), self._difference(got, users)

    def _may_hold(self, row: Row, tokens: Iterable[str]) -> bool:
        """Tell whether one of these can be found in the contents, or in what normalizing makes of them."""
        tokens = tuple(tokens)
        contents = [content for _, content in turns(row)]
        normalizer = self.model.loaded.tokenizer.backend_tokenizer.normalizer
        if normalizer is not None:
            contents += [normalizer.normalize_str(content) for content in contents]
        return any(token in content for token in tokens for content in contents)

    def _difference(self, got: Sequence[int], want: Sequence[int]) -> str:
        name = self.model.loaded.tokenizer.convert_ids_to_tokens
        return f"got {name(list(got))}, want {name(list(want))}"


def turns(row: Row) -> list[tuple[str, str]]:
    """Return the conversation that `row` gives."""
    return [(role, re.sub(r"{{ item\.(.) }}", lambda hole: row[hole[1]], text)) for role, text in CLASS]


def _hidden(number: int) -> str:
    """Return a name that no normalizer changes, no item holds, and none of which begins another."""
    letters = "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))
    return f"zqxj{letters}jxqz"
