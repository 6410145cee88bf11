"""What the messages of a class must be together, by its format: roles, and the beginning of the answer.

Looks at the class's table as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fafo_build.project.values import MistakeError, Path, describe, nearest

_WITHOUT_ROLES = ("raw", "completion")
_MESSAGE_KEYS = ("role", "prompt", "content", "prefill")

ROLE_IS_MISSING = (
    'add a line: role = "system", "user" or "assistant"; a class whose messages have no roles is of '
    'format = "raw" or "completion"'
)
"""What to do about a message of a chat without a role."""

CONVERSATION_IN_SCHEMA: Mapping[str, Any] = {
    "if": {"properties": {"format": {"enum": list(_WITHOUT_ROLES)}}, "required": ["format"]},
    "then": {
        "properties": {
            "chat_template_kwargs": False,
            "message": {"items": {"properties": {"role": False, "prefill": False}}},
        }
    },
    "else": {"properties": {"message": {"items": {"required": ["role"]}}}},
}
"""What `conversation` means in JSON Schema."""


def conversation(table: Mapping[str, Any]) -> Iterator[MistakeError]:
    """Yield what is wrong with the messages of a class, given its table."""
    form, written = table.get("format", "chat"), table.get("message")
    messages = written if isinstance(written, list) else []
    if form == "chat":
        for number, message in enumerate(messages):
            if isinstance(message, Mapping):
                yield from _turn(message, ("message", number), is_last=number == len(messages) - 1)
    elif form in _WITHOUT_ROLES:
        for number, message in enumerate(messages):
            if isinstance(message, Mapping):
                yield from _meaningless(message, ("role", "prefill"), ("message", number), form)
        yield from _meaningless(table, ("chat_template_kwargs",), (), form)


def _turn(message: Mapping[str, Any], at: Path, *, is_last: bool) -> Iterator[MistakeError]:
    role, prefill = message.get("role"), message.get("prefill", False)
    if role is None and not any(nearest(key, _MESSAGE_KEYS) == "role" for key in message):
        yield MistakeError("role is missing", cure=ROLE_IS_MISSING, path=at, at="table")
    if prefill is True and not is_last:
        yield MistakeError(
            "only the last message can be the beginning of the answer",
            cure="take it out, or move the message to the end",
            path=(*at, "prefill"),
            at="key",
        )
    elif prefill is True and isinstance(role, str) and role != "assistant":
        yield MistakeError(
            f"the beginning of the answer is the assistant's, and this message is of role {describe(role)}",
            cure='write role = "assistant", or take prefill out',
            path=(*at, "prefill"),
            at="key",
        )
    elif role == "assistant" and is_last and prefill is False:
        yield MistakeError(
            "the last message is the assistant's, and nothing says that the answer begins with it",
            cure="add prefill = true to it, or end with a user message",
            path=(*at, "role"),
        )


def _meaningless(
    table: Mapping[str, Any], keys: Sequence[str], at: Path, form: str
) -> Iterator[MistakeError]:
    for key in keys:
        if key in table:
            yield MistakeError(
                f'{key} has no meaning in a class of format "{form}": it has no chat template',
                cure='take it out, or write format = "chat"',
                path=(*at, key),
                at="key",
            )
