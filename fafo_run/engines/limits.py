"""What an engine refuses before it computes anything: prompts that don't fit, ids that don't exist."""

from __future__ import annotations

from collections.abc import Sequence

from fafo_build.project.declaration import FORMS
from fafo_run.engines.base import Capabilities, Prefix, Rejected, Request
from fafo_run.item import FailureCode, Ids

BATCH = 16
"""Items that an engine in this process takes at once, where `engine.max_running` isn't given."""

NO_TEXT = {
    **dict.fromkeys(FORMS, 'ask an SGLang server: kind = "sglang"'),
    "stop": 'write the ids in stop_token_ids, or ask an SGLang server: kind = "sglang"',
}
"""What an engine can't obey that knows ids and no text: `Capabilities.unable`."""


def in_vocabulary(ids: Sequence[int], vocab_size: int) -> bool:
    """Say whether all ids are from 0 to `vocab_size`, exclusive."""
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)


def stranger(ids: Sequence[int], vocab_size: int) -> str | None:
    """Name the first id outside the vocabulary and its place, or return None."""
    if in_vocabulary(ids, vocab_size):
        return None
    place = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
    return f"token {ids[place]} at place {place} isn't in the engine's vocabulary of {vocab_size}"


def same(one: Ids, other: Ids) -> bool:
    """Say whether these are the same ids; where it is one tuple, without a look at them."""
    return one is other or one == other


class Prefixes:
    """The prefixes that were looked through, by artifact: each once, and not with every request."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Ids, int, str | None]] = {}

    def stranger(self, prefix: Prefix, vocab_size: int) -> str | None:
        """Do as `stranger` does with the ids of a prefix."""
        known = self._known.get(prefix.artifact)
        if known is None or not same(known[0], prefix.ids) or known[1] != vocab_size:
            known = (prefix.ids, vocab_size, stranger(prefix.ids, vocab_size))
            self._known[prefix.artifact] = known
        return known[2]


def refusal(request: Request, limits: Capabilities, prefixes: Prefixes, server: str = "") -> Rejected | None:
    """Return why this request can't be sent, or None. Its prefix is added to `prefixes`."""
    context_length, vocab_size = limits.context_length, limits.vocab_size

    def rejected(code: FailureCode, message: str) -> Rejected:
        return Rejected(request.identity, code, message, server)

    prompt, output = request.prompt_tokens, request.sampling.max_new_tokens
    if prompt == 0:
        return rejected(FailureCode.REJECTED, "the prompt has no tokens")
    if prompt + output > context_length:
        return rejected(
            FailureCode.TOO_LONG,
            f"{prompt} prompt tokens and {output} to generate don't fit the context of {context_length}",
        )
    for key, cure in limits.unable.items():
        if getattr(request.sampling, key):
            return rejected(FailureCode.REJECTED, f"this engine can't obey {key}: {cure}")
    # The two parts apart: joining them would copy the prefix for every item.
    message = prefixes.stranger(request.prefix, vocab_size) or stranger(request.suffix, vocab_size)
    return rejected(FailureCode.TOKEN_OUT_OF_VOCABULARY, message) if message else None
