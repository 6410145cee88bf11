"""What one claim chooses among the items that wait: those that are wanted, not in flight and not done.

What isn't chosen is settled at once, since nothing that fails later makes it eligible. What is chosen stays
where it is until the claim as a whole has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fafo_run.queue.claims import ClaimTable, Place
from fafo_run.queue.part import Part, Waiting
from fafo_run.queue.selection import EVERYTHING, Selection

Done = Callable[[Sequence[tuple[bytes, int]]], Sequence[bool]]
"""Takes identities, each with its item's `retry`; says of each whether it needs no more work."""


class Draw:
    """One claim; the caller holds the state lock."""

    def __init__(
        self, claims: ClaimTable, selection: Selection, done: Done, newest: Mapping[bytes, tuple[int, int]]
    ) -> None:
        self.chosen: list[tuple[Part, Waiting]] = []
        self.twins: list[tuple[bytes, Place]] = []
        """Other entries of the chosen identities, to be looked at again when these have landed."""
        self._claims = claims
        self._selection = selection
        self._done = done
        self._newest = newest
        self._names: set[bytes] = set()

    def take(self, part: Part, limit: int) -> None:
        """Choose from one part until `limit` are chosen in all, or nothing is left. Raises `StoreError`."""
        mine = 0
        while (wanted := limit - len(self.chosen)) > 0 and (found := part.peek(mine, wanted)):
            waiting = [one for one in found if self._waits(part, one)]
            asked = [(one.item.identity, one.item.retry) for one in waiting]
            done = self._done(asked) if asked else ()
            # Of all of them, before twins are told: else of many entries of one that is done each claim
            # would find the next one only.
            kept = [
                one
                for one, is_done in zip(waiting, done, strict=True)
                if not is_done and self._is_free(part, one)
            ]
            part.keep(mine, len(found), kept)
            if any(done):
                part.mark([one.offset for one, is_done in zip(waiting, done, strict=True) if is_done])
            self.chosen += [(part, one) for one in kept]
            mine += len(kept)

    def _waits(self, part: Part, one: Waiting) -> bool:
        """Return whether an entry is wanted, and neither handed out nor older than another of its item."""
        item = one.item
        if self._selection is not EVERYTHING and item not in self._selection:
            return False
        if self._claims.flying.get(item.identity) == (part.uuid, one.offset):
            return False
        if self._newest and (item.retry, item.attempts) < self._newest.get(item.identity, (0, 0)):
            # A crash came between the new entry and the old one's marker.
            part.mark([one.offset])
            return False
        return True

    def _is_free(self, part: Part, one: Waiting) -> bool:
        """Return whether no other entry of the identity is in flight or chosen; remember it if there is."""
        item, place = one.item, (part.uuid, one.offset)
        if item.identity in self._claims.flying:
            self._claims.pass_over(item.identity, place)
            return False
        if item.identity in self._names:
            self.twins.append((item.identity, place))
            return False
        self._names.add(item.identity)
        return True
