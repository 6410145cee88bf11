"""Encodes the items of one artifact. Needs the artifact and its tokenizer, and neither transformers nor
prompts/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attrs import frozen

from fafo_build.bake.artifact import Artifact
from fafo_build.bake.assemble import Assembler, Bounds, HeadMismatchError, hole_text, reference
from fafo_build.render.marks import Marked
from fafo_build.render.message import MessageRenderer, RowError
from fafo_build.tokens.encoder import TextEncoder
from fafo_run.item import Ids, Output, Value


class PromptError(Exception):
    """This row can't become a prompt; the others can. The message says why in one line."""


@frozen
class Prompt:
    """What is encoded of one item."""

    suffix: Ids
    """The ids after the artifact's prefix."""
    bounds: Bounds
    """Per slot, where its ids begin and end (exclusive) within the suffix."""
    prompt_tokens: int
    """Prefix and suffix together."""


class PromptEncoder:
    """Makes prompts of rows for one artifact. Not for several threads at once."""

    def __init__(self, artifact: Artifact, tokenizer: str | bytes | TextEncoder) -> None:
        """`tokenizer` is the JSON of `artifact.tokenizer`, or an encoder of it, which artifacts may share."""
        self._artifact = artifact
        self._encoder = tokenizer if isinstance(tokenizer, TextEncoder) else TextEncoder(tokenizer)
        self._assembler = Assembler(artifact, self._encoder)
        self._renderer = MessageRenderer(artifact.templates, artifact.vars, artifact.examples)

    def encode(self, fields: Mapping[str, Value], source: str, key: str) -> Prompt:
        """Return the prompt of a row. Raises `PromptError` for a row that the templates can't use."""
        (found,) = self.encode_each([(fields, source, key)])
        if isinstance(found, PromptError):
            raise found
        return found

    def encode_each(self, rows: Iterable[tuple[Mapping[str, Value], str, str]]) -> list[Prompt | PromptError]:
        """Return the prompt of each row (fields, source, key), or why the templates can't use it."""
        found: list[Prompt | PromptError | None] = []
        good: list[list[Marked]] = []
        for row in rows:
            try:
                good.append(self._holes(*row))
                found.append(None)
            except PromptError as error:
                found.append(error)
        before = len(self._artifact.prefix)
        made = (
            Prompt(suffix, bounds, before + len(suffix)) for suffix, bounds in self._assembler.suffixes(good)
        )
        return [next(made) if each is None else each for each in found]

    def text(self, fields: Mapping[str, Value], source: str, key: str) -> str:
        """Return the whole conversation of a row, as the chat template renders it. Raises `PromptError`
        likewise.
        """
        return self._assembler.whole(self._holes(fields, source, key)).text

    def recheck(self, fields: Mapping[str, Value], source: str, key: str, prompt: Prompt) -> bool:
        """Tell whether a prompt is what encoding its whole conversation once gives. Raises `PromptError`
        likewise.
        """
        whole = self._assembler.whole(self._holes(fields, source, key))
        return reference(self._encoder, whole, self._artifact.lead) == [
            *self._artifact.prefix,
            *prompt.suffix,
        ]

    @property
    def prefix(self) -> Ids:
        """The ids that every prompt of the artifact begins with."""
        return self._artifact.prefix

    def prompt_text(self, suffix: Iterable[int]) -> tuple[str, str]:
        """Return prefix and suffix of a prompt as text, control tokens included."""
        # Decoded together: some decoders drop the space at the beginning of what they get.
        before = self._encoder.decode(self.prefix)
        whole = self._encoder.decode([*self.prefix, *suffix])
        return self._artifact.spans[0].text, whole[len(before) :]

    def text_of(self, ids: Iterable[int]) -> str:
        """Return any ids as text, control tokens included."""
        return self._encoder.decode(list(ids))

    def output_text(self, output: Output, stop_token_ids: Collection[int] = ()) -> str:
        """Return an output as text: without control tokens, and up to what the class declared as its end."""
        ids, matched = output.ids.ids, output.finish_reason.matched
        if isinstance(matched, int) and matched in stop_token_ids and ids[-1:] == (matched,):
            ids = ids[:-1]
        text = self._encoder.decode(ids, control=False)
        return text.partition(matched)[0] if isinstance(matched, str) and matched else text

    def _holes(self, fields: Mapping[str, Value], source: str, key: str) -> list[Marked]:
        try:
            return [
                _unicode(hole_text(hole, self._renderer.render(hole.template, fields, source, key)))
                for hole in self._artifact.holes
            ]
        except (RowError, HeadMismatchError) as error:
            raise PromptError(str(error)) from error


def _unicode(text: Marked) -> Marked:
    try:
        text.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"the text has half a surrogate pair, {text.text[error.start]!a}") from error
    return text
