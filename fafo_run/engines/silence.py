"""How long a request may be without its whole answer before it counts as lost: by its length, and by what the
server has shown of late. It knows nothing of HTTP.
"""

from __future__ import annotations

_LEAST = 60.0
"""Seconds that every request has, whatever came before: a burst may wait inside the server for so long."""
_MARGIN = 10.0
"""How many times longer than the slowest answer of late an answer may take, for its length."""
_PROMPT = 32
"""So many prompt tokens take about as long as one output token: they are computed together, or cached."""
_FADING = 0.998
"""What is left of the slowest pace with each answer: half after about 350."""


class Silence:
    """What one server has shown of its pace. Until it has answered once, only the declared bound holds."""

    def __init__(self, most: float) -> None:
        """`most` is the declared bound, in seconds."""
        self._most = most
        self._slowest: float | None = None
        """Seconds per unit of length."""

    def allowed(self, prompt_tokens: int, output_tokens: int) -> float:
        """Return how many seconds a request of this length, with so many tokens asked for, may take."""
        if self._slowest is None:
            return self._most
        expected = self._slowest * _length(prompt_tokens, output_tokens)
        return min(self._most, max(_LEAST, _MARGIN * expected))

    def answered(self, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """Note how long an answer with so many output tokens took."""
        pace = seconds / _length(prompt_tokens, output_tokens)
        self._slowest = pace if self._slowest is None else max(pace, self._slowest * _FADING)


def _length(prompt_tokens: int, output_tokens: int) -> float:
    return 1 + prompt_tokens / _PROMPT + output_tokens
