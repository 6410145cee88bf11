"""What the queue asks of the results, which it knows nothing else of."""

from __future__ import annotations

from typing import Protocol


class Outcomes(Protocol):
    """Says of identities what has been recorded."""

    def __contains__(self, identity: object) -> bool:
        """Return whether an identity has a record."""

    def has_output(self, identity: bytes) -> bool:
        """Return whether an identity has an output."""

    def is_done(self, identity: bytes, retry: int = 0) -> bool:
        """Return whether an item that was put back `retry` times needs no more work."""
