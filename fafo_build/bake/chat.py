"""The form of chat classes: a model's chat template, called as a user would call it. Knows how today's date
is pinned, and nothing of spans.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from fafo_build.bake.form import Form, OwnTokenizer, Turn
from fafo_build.bake.probes import template_probes, trimmed_characters
from fafo_build.bake.template_words import arguments_of, filters, names, strings
from fafo_build.errors import BakeError
from fafo_build.project.values import did_you_mean, listed

_CLOCK = "strftime_now"
"""The function by which chat templates ask what day it is."""

_DAY = "date_string"
"""The name under which chat templates take today's date from their caller."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
"""How Python writes an object that has no text: with its place in this process's memory."""

_UNPINNED = "it asks for today's date, and has none"
_UNKNOWN_DATE = "it asks for today's date in a form that isn't written out in it"
_LONGEST_REASON = 300


class Chat(Form):
    """The chat template of one class's model, with what the class tells it."""

    def __init__(
        self,
        own: OwnTokenizer,
        chat_template: str,
        name: str,
        file: str,
        *,
        kwargs: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        prefill: bool = False,
    ) -> None:
        """`kwargs` go to the template; `date` is today, for a template that asks; with `prefill` the last
        message is the beginning of the answer.

        Raises `BakeError` for a template that asks for a date that nobody gives, or for random text, and for
        `kwargs` that it never looks at.
        """
        super().__init__(own, name, file)
        self._template = chat_template
        self._kwargs = dict(kwargs or {})
        self._prefill = prefill
        asked = names(chat_template)
        self._check(asked)
        if date is not None and _DAY in asked:
            self._kwargs.setdefault(_DAY, date.strftime("%d %b %Y"))
        if _DAY in asked and _DAY not in self._kwargs:
            raise self._unpinned(_DAY)
        self._clock = _clock(date, self._formats()) if _CLOCK in asked else ""

    def _check(self, asked: frozenset[str]) -> None:
        # Of Jinja's own functions and filters, those that give something else each time.
        for name in (asked & {"lipsum"}) | (filters(self._template) & {"random"}):
            raise self.error(
                f"the chat template makes random text ({name}), so no prefix could stay the same",
                "use another chat template: model.chat_template",
            )
        unheard = [name for name in self._kwargs if name not in asked]
        if unheard:
            raise self.error(
                f"the chat template never looks at {listed(unheard)} (chat_template_kwargs)",
                did_you_mean(unheard[0], sorted(arguments_of(self._template)), what="what it looks at"),
            )

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Texts by which the chat template may look into the content of a message."""
        return template_probes(self._template)

    @cached_property
    def trimmed(self) -> str:
        """The characters that its code strips by name."""
        return trimmed_characters(self._template)

    def render(self, turns: Sequence[Turn]) -> str:
        """Return the conversation as text, ready for the answer. Raises `BakeError` when the template
        refuses it.
        """
        (rendered,) = self.render_each([turns])
        return rendered

    def render_each(self, conversations: Sequence[Sequence[Turn]]) -> list[str]:
        """Do as `render` does, in one call: calling transformers takes longer than most templates do."""
        rendered = [str(text) for text in self._apply(list(map(_messages, conversations)), tokenize=False)]
        for turns, text in zip(conversations, rendered, strict=True):
            self._check_repeatable(turns, text)
        return rendered

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids of the conversation, as `apply_chat_template` gives them. Raises `BakeError` as
        `render`.
        """
        return list(self._apply(_messages(turns), tokenize=True))

    def _check_repeatable(self, turns: Sequence[Turn], rendered: str) -> None:
        if " at 0x" not in rendered:
            return
        address = _ADDRESS.search(rendered)
        if address and not any(address.group() in text for text in self._given(turns)):
            raise self.error(
                f"the chat template writes a place in memory,{address.group()}, which is another each time",
                "use another chat template: model.chat_template",
            )

    def _apply(self, conversation: list[Any], *, tokenize: bool) -> Any:
        """Call `apply_chat_template` with the messages of one conversation, or of several."""
        try:
            return self.own.tokenizer.apply_chat_template(
                conversation,
                chat_template=self._clock + self._template,
                tokenize=tokenize,
                add_generation_prompt=not self._prefill,
                continue_final_message=self._prefill,
                return_dict=False,
                # Long probes are meant to be long: no warning about the model's length.
                tokenizer_kwargs={"verbose": False} if tokenize else {},
                **self._kwargs,
            )
        except TemplateSyntaxError as error:
            line = error.lineno - self._clock.count("\n")
            raise self.error(
                f"the chat template isn't Jinja: {error.message} (line {line})", "mend it, or name another"
            ) from error
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            if str(error) == _UNPINNED:  # what `_clock` raises
                raise self._unpinned(_CLOCK) from error
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            raise self.error(
                f"the chat template refuses the conversation: {reason}", "change the roles or their order"
            ) from error

    def _unpinned(self, name: str) -> BakeError:
        more = f', or chat_template_kwargs.{_DAY} = "31 Jan 2026"' if _DAY in names(self._template) else ""
        return self.error(
            f"the chat template asks for today's date ({name}), so the prefix would change at midnight",
            f"give it one: model.date = 2026-01-31{more}",
        )

    def _formats(self) -> Iterator[str]:
        return (text for text in (*strings(self._template), *_texts(self._kwargs)) if "%" in text)

    def _given(self, turns: Sequence[Turn]) -> Iterator[str]:
        yield from (turn.content for turn in turns)
        yield from _texts(self._kwargs)
        yield self._template


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [{"role": turn.role, "content": turn.content} for turn in turns]


def _clock(date: datetime.date | None, formats: Iterator[str]) -> str:
    """Return a `strftime_now` that knows one day, or none, to stand before a chat template.

    transformers takes no function from its callers, so it is a macro, and knows the formats that are written
    out. The newline after it is eaten by the `trim_blocks` of transformers.
    """
    known = {} if date is None else {text: date.strftime(text) for text in formats}
    refusal = _UNPINNED if date is None else _UNKNOWN_DATE
    return (
        "{% macro " + _CLOCK + "(form) %}"
        "{% if form not in " + repr(known) + " %}{{ raise_exception(" + repr(refusal) + ") }}{% endif %}"
        "{{ " + repr(known) + "[form] }}{% endmacro %}\n"
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
