"""The form of raw and completion classes: the texts of the messages, joined as they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from fafo_build.bake.form import Form, OwnTokenizer, Turn


class Plain(Form):
    """Joins the messages. With `adds`, the tokenizer adds what it puts around every text by itself (BOS,
    and EOS if it does); without, nothing is added.
    """

    def __init__(self, own: OwnTokenizer, name: str, file: str, *, adds: bool) -> None:
        """Raises `BakeError` when the tokenizer adds a token that has no text."""
        super().__init__(own, name, file)
        self._adds = adds
        self._trail = ""
        if adds:
            self.lead, self._trail = self._added()

    @property
    def wanted_bos(self) -> int | None:
        """None in a raw class: what it holds is its author's business."""
        return super().wanted_bos if self._adds else None

    def render(self, turns: Sequence[Turn]) -> str:
        """Return the texts of the messages, between those of the tokens that the tokenizer adds."""
        return self.lead + self._joined(turns) + self._trail

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Return what the tokenizer gives for the joined texts."""
        # Long probes are meant to be long: no warning about the model's length.
        encoding = self.own.tokenizer(
            self._joined(turns), add_special_tokens=self._adds, return_attention_mask=False, verbose=False
        )
        return list(encoding["input_ids"])

    def _joined(self, turns: Sequence[Turn]) -> str:
        return "".join(turn.content for turn in turns)

    def _added(self) -> tuple[str, str]:
        """Return the texts of the tokens that the tokenizer puts before and after every text."""
        encoding = self.own.tokenizer.backend_tokenizer.encode("x", add_special_tokens=True)
        marked = list(zip(encoding.tokens, encoding.special_tokens_mask, strict=True))
        before = [token for token, _ in takewhile(lambda pair: pair[1], marked)]
        after = [token for token, _ in takewhile(lambda pair: pair[1], reversed(marked))][::-1]
        for token in (*before, *after):
            if token not in self.own.judge.control:
                raise self.error(
                    f"the tokenizer puts {token!r} around every text, which isn't one of its added tokens",
                    'write format = "raw", and the tokens that are meant in the messages',
                )
        return "".join(before), "".join(after)
