"""How people without fafo make ids of a conversation: what baking is measured by. The contract, and what
its implementations (`chat`, `plain`) share: the model's own tokenizer.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from fafo_build.bake.canonical import canonical
from fafo_build.bake.windows import Around, Filling
from fafo_build.errors import BakeError, Problem
from fafo_build.tokens.encoder import TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@frozen
class Turn:
    """One message, as the form gets it."""

    role: str | None
    """None where messages have no roles."""
    content: str


@frozen(slots=False)
class OwnTokenizer:
    """A model's tokenizer as transformers loads it, and what is made of it once for all classes."""

    tokenizer: PreTrainedTokenizerFast
    shown: dict[Around, set[Filling]] = field(factory=dict, repr=False, eq=False)
    """What the proof has found to be right around slots: classes that say the same there share it."""

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The tokenizer as the `tokenizers` library keeps it."""
        content = json.loads(self.tokenizer.backend_tokenizer.to_str())
        # What an earlier call may have switched on; neither belongs to the tokenizer.
        return {**content, "truncation": None, "padding": None}

    @cached_property
    def json(self) -> bytes:
        """The same as canonical JSON."""
        return canonical(self.content)

    @cached_property
    def judge(self) -> TextEncoder:
        """An encoder for the proof alone, never the one that is under proof."""
        return TextEncoder(self.json)

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a sequence, if the tokenizer names one."""
        bos: int | None = self.tokenizer.bos_token_id
        return bos


class Form(ABC):
    """Makes one text of a class's messages, and the ids of that text."""

    lead: str = ""
    """The text of the tokens that the tokenizer itself puts before every text, where this form lets it. The
    rendered text begins with it, but for the tokenizer the text begins after it."""

    def __init__(self, own: OwnTokenizer, name: str, file: str) -> None:
        """`name` and `file` are the class's, for messages."""
        self.own = own
        self._name = name
        self._file = file

    @property
    def wanted_bos(self) -> int | None:
        """The id that must begin every prompt, and stand nowhere else in it, if there is one."""
        return self.own.judge.one_bos()

    @property
    def words(self) -> tuple[str, ...]:
        """Texts by which this form may look into the content of a message."""
        return ()

    @property
    def trimmed(self) -> str:
        """The characters besides white space that this form may take away at the ends of a content."""
        return ""

    @abstractmethod
    def render(self, turns: Sequence[Turn]) -> str:
        """Return the text, ready for the answer. Raises `BakeError` when the form refuses the messages."""

    def render_each(self, conversations: Sequence[Sequence[Turn]]) -> Sequence[str]:
        """Return what `render` gives for each. Raises `BakeError` when the form refuses one of them."""
        return [self.render(turns) for turns in conversations]

    @abstractmethod
    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids that transformers gives for these messages. Raises `BakeError` as `render`."""

    def error(self, message: str, cure: str | None = None) -> BakeError:
        """Return an error of this class."""
        return BakeError(Problem(message, file=self._file, field=f"class.{self._name}", cure=cure))
