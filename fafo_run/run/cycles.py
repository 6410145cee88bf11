"""How often a run's process looks for reference cycles."""

from __future__ import annotations

import gc

_ALLOCATIONS = 100_000


def search_rarely() -> None:
    """Look for cycles after every 100,000 objects more, instead of after every few hundred.

    An item costs some dozen objects that live until it is recorded, and next to none in a cycle; to look at
    all that are in flight again and again is a third of the time that the log takes.
    """
    gc.set_threshold(_ALLOCATIONS, 20, 20)
