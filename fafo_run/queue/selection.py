"""Which items of a queue somebody is after: by what they share, and by what names them."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from fafo_run.item import Provenance, QueuedItem

Wanted = Callable[[Provenance], bool]
Chosen = Callable[[bytes], bool]
"""Takes an identity."""


@frozen
class Selection:
    """An item belongs to it when what it shares is wanted, and its identity is chosen."""

    wanted: Wanted
    chosen: Chosen | None = None
    """None chooses all."""

    def __contains__(self, item: QueuedItem) -> bool:
        return self.wanted(item.provenance) and (self.chosen is None or self.chosen(item.identity))


EVERYTHING = Selection(lambda _: True)
