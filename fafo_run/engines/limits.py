"""What an engine refuses before it computes anything: prompts that don't fit, ids that don't exist."""

from __future__ import annotations

from fafo_run.engines.base import Rejected, Request
from fafo_run.item import FailureCode, Ids


def in_vocabulary(ids: Ids, vocab_size: int) -> bool:
    """Say whether all ids are from 0 to `vocab_size`, exclusive."""
    return not ids or (min(ids) >= 0 and max(ids) < vocab_size)


def stranger(ids: Ids, vocab_size: int) -> str | None:
    """Name the first id outside the vocabulary and its place, or return None."""
    if in_vocabulary(ids, vocab_size):
        return None
    place = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
    return f"token {ids[place]} at place {place} isn't in the engine's vocabulary of {vocab_size}"


def refusal(request: Request, *, vocab_size: int, context_length: int, server: str = "") -> Rejected | None:
    """Return why this request can't be sent, or None.

    `context_length` is in tokens, for prompt and output together.
    """

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
    # The two parts apart: joining them would copy the prefix for every item.
    message = stranger(request.prefix.ids, vocab_size) or stranger(request.suffix, vocab_size)
    return rejected(FailureCode.TOKEN_OUT_OF_VOCABULARY, message) if message else None
