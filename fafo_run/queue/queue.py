"""The queue of a run: what waits, what is handed out, what is done. The segments are its only durable copy.

A producer appends, a dispatcher claims and releases, a completer retires; each from its own thread. It knows
nothing of engines and results.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from fafo_run.item import Claim, QueuedItem
from fafo_run.log.appender import IDLE, SEGMENT_BYTES
from fafo_run.log.directory import RunDirectory
from fafo_run.log.reader import Scan
from fafo_run.log.route import Route
from fafo_run.queue.claims import ClaimTable, Place
from fafo_run.queue.draw import Done, Draw
from fafo_run.queue.order import Order
from fafo_run.queue.parts import Parts
from fafo_run.queue.payload import counts
from fafo_run.queue.selection import EVERYTHING, Selection
from fafo_run.queue.writer import QueueWriter

LEASE = 3600.0
"""Seconds after which a claim counts as expired."""


def _never(asked: Sequence[tuple[bytes, int]]) -> list[bool]:
    return [False] * len(asked)


class Queue:
    """Open it after recovery, once per run. Thread-safe.

    Locks are taken in the order maintain, append, state; no disk sync happens under the state lock, so that
    claiming never waits for the disk.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        done: Done = _never,
        walked: Mapping[bytes, Scan] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        lease: float = LEASE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the queue of a run whose lock is held. Raises `StoreError`.

        `done` is asked of what is about to be handed out: of two entries of one identity the second isn't
        computed again. `walked` is what recovery found, so that nothing is walked twice for it.
        """
        if directory.lock is None:
            raise ValueError("the queue needs the store's lock")
        self.late = 0
        """Completions of claims that had lost their items meanwhile."""
        self._done = done
        self._monotonic = monotonic
        self._maintain = threading.Lock()
        self._state = threading.Lock()
        self._claims = ClaimTable(lease)
        self._parts = Parts(directory, self._state)
        self._order = Order()
        self._newest: dict[bytes, tuple[int, int]] = {}
        """`retry` and `attempts` of items that had any at the start: of two entries the higher counts."""
        self._writer = QueueWriter(
            directory,
            segment_bytes=segment_bytes,
            idle=idle,
            monotonic=monotonic,
            followed=False,
            appended=self._parts.appended,
            sealed=self._parts.sealed,
        )
        self._refresh(walked or {})

    @property
    def findings(self) -> tuple[str, ...]:
        """One line for people per thing that was mended since the queue was opened."""
        return tuple(self._parts.findings)

    def append(self, items: Sequence[QueuedItem]) -> None:
        """Queue items, durably, with one sync per (model, artifact, lane).

        Raises `DiskFull` or `StoreError`; then none of the items is queued, and `SyncFailed`; then it isn't
        known, and the queue does nothing any more.
        """
        self._check()
        self._writer.append(items)

    def refresh(self) -> int:
        """Take in what other processes have queued, up to where they say it is durable; return how much.

        A segment whose writer went away before it was sealed is mended and sealed, as at a start. To be
        called about twice a second. Raises `StoreError`.
        """
        return self._refresh({})

    def settle(self, done: Done | None = None) -> int:
        """Mark every item as done that needs no more work, and return how many: recovery's step 7.

        For the start of a run. `done` stands in for the queue's own. Raises `StoreError`.
        """
        retired = 0
        with self._maintain, self._state:
            self._check()
            for part in self._parts:
                for run, which in part.living(trusted=True):
                    names, offsets = run.names(which), run.offsets[which].tolist()
                    marks = counts(run, which)
                    said = (done or self._done)(
                        [(n, retry) for n, (retry, _) in zip(names, marks, strict=True)]
                    )
                    for name, offset, mark, is_done in zip(names, offsets, marks, said, strict=True):
                        if is_done:
                            retired += part.retire([offset])
                        elif mark > (0, 0):
                            self._newest[name] = max(mark, self._newest.get(name, mark))
        return retired

    def select(self, selection: Selection) -> None:
        """Let the rest of this run see only items that belong to a selection.

        The others keep waiting for another run. To be called at the start, before anything is claimed or
        appended: what this process appends later is wanted. Raises `StoreError`.
        """
        with self._maintain, self._state:
            self._check()
            self._parts.select(selection)

    def depth(self) -> int:
        """Return how many wanted items wait or are handed out."""
        with self._state:
            return sum(part.live - part.aside for part in self._parts)

    def identities(self, selection: Selection = EVERYTHING) -> set[bytes]:
        """Return the identities of all items that wait or are handed out and belong to a selection."""
        with self._maintain:
            return {name for part in self._parts.listed() for name in part.names(selection)}

    def claim(self, limit: int, order: Order | None = None) -> list[Claim]:
        """Hand out up to `limit` wanted items of one (model, artifact, lane); none when none waits.

        One such group is drained before the next, as `order` says, and then the oldest comes first: whoever
        claims for a server has one of its own, else the queue's is meant. An
        identity is never handed out twice at once, nor when it is done. Raises `StoreError` when an entry
        can't be read; then nothing was handed out.
        """
        with self._state:
            self._check()
            order = order or self._order
            for route in self._routes(order):
                claims = self._claim_from(route, limit)
                if claims:
                    order.entered(route)
                    return claims
            return []

    def release(self, claims: Sequence[Claim]) -> None:
        """Give claims back, so that their items are handed out again; late claims are passed over."""
        with self._state:
            self._rewind(self._claims.give_back(claims))

    def extend(self, claims: Sequence[Claim]) -> int:
        """Begin the leases of these claims anew, and return how many still held their items: a heartbeat.

        A late claim extends nothing: whoever holds the item now has a lease of its own.
        """
        with self._state:
            return self._claims.extend(claims, self._monotonic())

    def again(self, claims: Sequence[Claim]) -> None:
        """Queue the items of these claims anew with one attempt more, durably, then retire the old entries.

        For attempts that brought no answer while the engine lived; late claims are passed over. A crash in
        between leaves both entries, and the one with more attempts counts. Raises as `append` does; then
        the claims hold their items as before.
        """
        with self._state:
            current = [claim for claim in claims if self._claims.is_current(claim)]
        self.append([replace(claim.item, attempts=claim.item.attempts + 1) for claim in current])
        self.retire(current)

    def is_current(self, claim: Claim) -> bool:
        """Return whether this claim still holds its item; a completion of any other is late."""
        with self._state:
            return self._claims.is_current(claim)

    def expired(self, now: float | None = None) -> list[Claim]:
        """Return claims whose lease has ended at `now`, in seconds of the monotonic clock."""
        with self._state:
            return self._claims.expired(self._monotonic() if now is None else now)

    def retire(self, claims: Sequence[Claim]) -> int:
        """Mark items done, whose record is durable; return how many weren't yet. The markers aren't synced.

        A late claim retires its item too: the record is what counts, and whoever holds the item now is late.
        """
        with self._state:
            found: dict[bytes, list[int]] = {}
            twins: list[Place] = []
            for claim in claims:
                was_late, others = self._claims.finish(claim)
                self.late += was_late
                twins += others
                found.setdefault(claim.segment, []).append(claim.offset)
            parts = ((self._parts.get(segment), offsets) for segment, offsets in found.items())
            retired = sum(part.retire(offsets) for part, offsets in parts if part is not None)
            self._rewind(twins)
            return retired

    def drop(self, kept: Selection) -> int:
        """Remove the segments in which items wait, and none that is kept; return how many items went.

        For items that the view doesn't stand for any more. They aren't marked as done, since nothing
        was done; where others wait beside them they go on waiting. Raises `StoreError`.
        """
        with self._maintain:
            self._check()
            return self._parts.drop(kept)

    def sync_markers(self) -> None:
        """Make all markers durable. Raises `SyncFailed`; then the queue does nothing any more."""
        with self._maintain:
            self._check()
            self._parts.sync()

    def collect(self) -> int:
        """Seal what has long been idle, remove the segments in which everything is done; return how many.

        What a segment holds is counted anew from its markers, and one that a reader has open is left for
        later.
        """
        with self._maintain:
            self._check()
            self._writer.seal_due()
            return self._parts.collect()

    def close(self, *, clean: bool) -> None:
        """Close. `clean` syncs the markers, seals what grows and removes what is done. Safe to call twice."""
        with self._maintain:
            clean = clean and self._parts.failed is None and self._writer.failed is None
            try:
                if clean:
                    self._parts.sync()
                self._writer.close(clean=clean)
                if clean:
                    self._parts.collect()
            finally:
                self._parts.close()

    def _check(self) -> None:
        failed = self._parts.failed or self._writer.failed
        if failed is not None:
            raise failed

    def _refresh(self, walked: Mapping[bytes, Scan]) -> int:
        with self._maintain:
            self._check()
            # Nothing is appended meanwhile: a segment that this process has just named is known already.
            with self._writer.lock:
                unknown = self._parts.unknown()
            taken = sum(self._parts.take_up(segment, walked) for segment in unknown)
            return taken + sum(self._parts.follow(part) for part in self._parts.listed() if part.followed)

    def _routes(self, order: Order) -> list[Route]:
        """Return the routes that may have something to hand out, in the order in which they are asked."""
        unread = sorted((part for part in self._parts if part.unread), key=lambda part: part.header.sequence)
        return order.sorted(part.route for part in unread)

    def _claim_from(self, route: Route, limit: int) -> list[Claim]:
        parts = [part for part in self._parts if part.unread and part.route == route]
        draw = Draw(self._claims, self._parts.selection, self._done, self._newest)
        try:
            for part in sorted(parts, key=lambda part: part.header.sequence):
                draw.take(part, limit)
        except BaseException:
            self._rewind(place for _, place in draw.twins)
            raise
        # Everything was read and checked; from here on only memory changes.
        now = self._monotonic()
        for part, count in Counter(part for part, _ in draw.chosen).items():
            part.advance(count)
        claims = [self._claims.take(part.uuid, one.offset, one.item, now) for part, one in draw.chosen]
        for name, place in draw.twins:
            if name in self._claims.flying:
                self._claims.pass_over(name, place)
            else:
                self._rewind([place])
        return claims

    def _rewind(self, places: Iterable[Place]) -> None:
        """Look at these entries again: of the segments, only those that they are in are read again."""
        for segment, offset in places:
            part = self._parts.get(segment)
            if part is not None:
                part.rewind(offset)
