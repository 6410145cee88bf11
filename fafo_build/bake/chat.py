"""A model's chat template, called as a user would call it. The only place of the build that runs
transformers.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import frozen
from jinja2 import Environment, TemplateError, TemplateSyntaxError

from fafo_build.bake.canonical import canonical
from fafo_build.bake.probes import template_probes
from fafo_build.errors import BakeError, Problem
from fafo_build.tokens.encoder import TextEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_TODAY = ("strftime_now", "date_string")
"""Names by which chat templates ask for today's date."""


@frozen
class Turn:
    """One message as the chat template gets it."""

    role: str
    content: str


class Chat:
    """The chat template of one model, with today's date pinned where it asks for one.

    `model` is its name in the project, for messages.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        chat_template: str,
        model: str = "default",
        date: datetime.date | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._model = model
        self._pinned: dict[str, Any] = {}
        asks = names_today(chat_template)
        if asks and date is None:
            raise self.error(
                f"the chat template asks for today's date ({asks})", "give it one: model.date = 2026-01-31"
            )
        if asks and date is not None:
            self._template = _frozen_clock(chat_template, date) + chat_template
            self._pinned = {"date_string": date.strftime("%d %b %Y")}

    @cached_property
    def tokenizer_json(self) -> bytes:
        """The tokenizer as the `tokenizers` library keeps it, as canonical JSON."""
        import json

        content = json.loads(self._tokenizer.backend_tokenizer.to_str())
        # What an earlier call may have switched on; neither belongs to the tokenizer.
        return canonical({**content, "truncation": None, "padding": None})

    @cached_property
    def judge(self) -> TextEncoder:
        """An encoder for the proof alone, never the one that is under proof."""
        return TextEncoder(self.tokenizer_json)

    @cached_property
    def template_words(self) -> tuple[str, ...]:
        """Texts by which the chat template may look into the content of a message."""
        return template_probes(self._template)

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a sequence, if the tokenizer names one."""
        bos: int | None = self._tokenizer.bos_token_id
        return bos

    def error(self, message: str, cure: str | None = None) -> BakeError:
        """Return the error of this model's chat template."""
        field = "model" if self._model == "default" else f"models.{self._model}"
        return BakeError(Problem(message, field=field, cure=cure))

    def render(self, turns: Sequence[Turn]) -> str:
        """Return the conversation as text, ready for the answer. Raises `BakeError` when the template
        refuses it.
        """
        return str(self._apply(turns, tokenize=False))

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids of the conversation, as `apply_chat_template` gives them. Raises `BakeError` as
        `render`.
        """
        return list(self._apply(turns, tokenize=True))

    def _apply(self, turns: Sequence[Turn], *, tokenize: bool) -> Any:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                tokenize=tokenize,
                add_generation_prompt=True,
                return_dict=False,
                # Long probes are meant to be long: no warning about the model's length.
                tokenizer_kwargs={"verbose": False} if tokenize else {},
                **self._pinned,
            )
        except TemplateSyntaxError as error:
            raise self.error(
                f"the chat template isn't Jinja: {error.message} (line {error.lineno})",
                "mend it, or name another",
            ) from error
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise self.error(
                f"the chat template refuses the conversation: {error}", "change the roles or their order"
            ) from error


def _frozen_clock(chat_template: str, date: datetime.date) -> str:
    """Return a `strftime_now` that knows one day, to stand before a chat template.

    transformers takes no function from its callers, so it is a macro, and knows the formats that the template
    writes out. The newline after it is eaten by the `trim_blocks` of transformers.
    """
    formats = {word: date.strftime(word) for word in _strings(chat_template) if "%" in word}
    return "{% macro strftime_now(form) %}{{ " + repr(formats) + "[form] }}{% endmacro %}\n"


def _strings(chat_template: str) -> list[str]:
    return [text[1:-1] for _, kind, text in Environment().lex(chat_template) if kind == "string"]


def names_today(chat_template: str) -> str | None:
    """Return the name by which a chat template asks for today's date, None if it doesn't."""
    try:
        tokens = list(Environment().lex(chat_template))
    except TemplateSyntaxError:
        return None  # rendering it says where
    return next((text for _, kind, text in tokens if kind == "name" and text in _TODAY), None)
