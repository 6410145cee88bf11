"""Which length bucket a prompt belongs to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def lane_of(prompt_tokens: int, lanes: Sequence[int], context_length: int) -> int:
    """Return the lowest of the rising bounds `lanes` that holds the prompt; above the last, the
    context length.
    """
    at = bisect_left(lanes, prompt_tokens)
    return lanes[at] if at < len(lanes) else max(context_length, prompt_tokens)
