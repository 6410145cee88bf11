"""The queue of a run: what waits, what is handed out, what is done. The segments are its only durable copy.

A producer appends, a dispatcher claims and releases, a completer retires; each from its own thread. It knows
nothing of engines and results.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence

from fafo_build.errors import StoreError
from fafo_run.item import Claim, QueuedItem
from fafo_run.log.appender import IDLE, SEGMENT_BYTES, Appender, OpenSegment, Route
from fafo_run.log.directory import RunDirectory
from fafo_run.log.format import SegmentKind
from fafo_run.log.fs import File, SyncFailed, refusing
from fafo_run.log.listing import remove_segment, segments
from fafo_run.log.payload import ProvenanceCache
from fafo_run.log.reader import read_header, scan
from fafo_run.log.recovery import next_sequence
from fafo_run.queue.claims import ClaimTable
from fafo_run.queue.part import Part, Wanted
from fafo_run.queue.payload import draft

LEASE = 3600.0
"""Seconds after which a claim counts as expired."""


class Queue:
    """Open it after recovery, once per run. Thread-safe.

    Locks are taken in the order maintain, append, state; no disk sync happens under the state lock, so that
    claiming never waits for the disk.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle: float = IDLE,
        lease: float = LEASE,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the queue of a run whose lock is held. Raises `StoreError`."""
        if directory.lock is None:
            raise ValueError("the queue needs the store's lock")
        self._disk = directory.disk
        self._folder = directory.queue
        self._monotonic = monotonic
        self._maintain = threading.Lock()
        self._append = threading.Lock()
        self._state = threading.Lock()
        self._failed: StoreError | None = None
        self._cache = ProvenanceCache()
        self._claims = ClaimTable(lease)
        self._parts: dict[bytes, Part] = {}
        self._present: Route | None = None
        self._wanted: Wanted = lambda _: True
        for segment in segments(self._disk, self._folder):
            file = File(self._disk, segment.path, write=True)
            header, _ = read_header(file)
            if header is not None:
                self._parts[header.uuid] = Part.load(file, header)
        self._appender = Appender(
            self._disk,
            self._folder,
            SegmentKind.QUEUE,
            segment_bytes=segment_bytes,
            idle=idle,
            monotonic=monotonic,
            first_sequence=next_sequence(directory, self._folder),
        )

    def append(self, items: Sequence[QueuedItem]) -> None:
        """Queue items, durably, with one sync per (model, artifact, lane).

        Raises `DiskFull` or `StoreError`; then none of the items is queued, and `SyncFailed`; then it isn't
        known, and the queue does nothing any more.
        """
        with self._append:
            self._check()
            for segment in self._appender.due():
                self._roll(segment)
            drafts = [draft(item, self._cache) for item in items]
            try:
                placed = self._appender.commit(drafts)
            except SyncFailed as error:
                self._failed = error
                raise
            with self._state:
                for place in placed:
                    part = self._part_of(place.segment)
                    part.live += 1
                    part.end = place.segment.writer.synced

    def select(self, wanted: Wanted) -> None:
        """Let the rest of this run see wanted items only; the others keep waiting for another run.

        To be called at the start, before anything is claimed or appended: what is appended later is wanted.
        Raises `StoreError` for an entry that can't be read.
        """
        with self._maintain, self._state:
            self._check()
            self._wanted = wanted
            for part in self._parts.values():
                part.aside = sum(not wanted(part.read(entry)) for entry in part.living())

    def depth(self) -> int:
        """Return how many wanted items wait or are handed out."""
        with self._state:
            return sum(part.live - part.aside for part in self._parts.values())

    def identities(self) -> set[bytes]:
        """Return the identities of all items that wait or are handed out: 16 bytes each."""
        with self._maintain:
            return {entry.identity for part in self._listed() for entry in part.living()}

    def claim(self, limit: int) -> list[Claim]:
        """Hand out up to `limit` wanted items of one (model, artifact, lane); none when none waits.

        One such group is drained before the next, and then the oldest
        comes first. Raises `StoreError` when an entry can't be read; then nothing was handed out.
        """
        with self._state:
            self._check()
            for route in self._routes():
                claims = self._claim_from(route, limit)
                if claims:
                    self._present = route
                    return claims
            return []

    def release(self, claims: Sequence[Claim]) -> None:
        """Give claims back, so that their items are handed out again; late claims are passed over."""
        with self._state:
            for claim in self._claims.give_back(claims):
                part = self._parts[claim.segment]
                part.position = min(part.position, claim.offset)

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
            done = 0
            for claim in claims:
                self._claims.finish(claim)
                part = self._parts.get(claim.segment)
                done += part is not None and part.retire(claim.offset)
            return done

    def retire_where(self, done: Container[bytes]) -> int:
        """Mark every item done whose identity is in `done`; return how many. For the start of a run."""
        with self._maintain, self._state:
            self._check()
            retired = 0
            for part in self._parts.values():
                for entry in part.living():
                    if entry.identity in done:
                        retired += part.retire(entry.offset)
            return retired

    def drop(self, unwanted: Wanted) -> int:
        """Remove the segments in which every item that waits is unwanted; return how many items went.

        For items that the declaration doesn't stand for any more. They aren't marked as done, since nothing
        was done; where others wait beside them they go on waiting. Raises `StoreError`.
        """
        with self._maintain:
            self._check()
            dropped = 0
            for part in self._listed():
                waiting = part.live
                if (
                    waiting
                    and not part.growing
                    and all(unwanted(part.read(entry)) for entry in part.living())
                ):
                    dropped += waiting if self._remove(part, waiting) else 0
            return dropped

    def sync_markers(self) -> None:
        """Make all markers durable. Raises `SyncFailed`; then the queue does nothing any more."""
        with self._maintain:
            self._sync_markers()

    def collect(self) -> int:
        """Seal what has long been idle, remove the segments in which everything is done; return how many.

        What a segment holds is counted anew from its markers, and one that a reader has open is left for
        later.
        """
        with self._maintain:
            self._check()
            with self._append:
                for segment in self._appender.due():
                    self._roll(segment)
            return self._collect()

    def close(self, *, clean: bool) -> None:
        """Close. `clean` syncs the markers, seals what grows and removes what is done. Safe to call twice."""
        with self._maintain, self._append:
            try:
                if clean and self._failed is None:
                    self._sync_markers()
                    for segment in list(self._appender.open.values()):
                        self._roll(segment)
                    self._collect()
            finally:
                with self._state:
                    while self._parts:
                        self._parts.popitem()[1].close()
                self._appender.open.clear()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _listed(self) -> list[Part]:
        with self._state:
            return list(self._parts.values())

    def _part_of(self, segment: OpenSegment) -> Part:
        writer = segment.writer
        part = self._parts.get(writer.header.uuid)
        if part is None:
            part = self._parts[writer.header.uuid] = Part(
                writer.file, writer.header, writer.synced, 0, segment=segment
            )
        return part

    def _routes(self) -> list[Route]:
        """Return the routes that may have something to hand out: the present one, then by age."""
        waiting = [part for part in self._parts.values() if part.position < part.end]
        waiting.sort(key=lambda part: part.header.sequence)
        routes = list(dict.fromkeys(part.route for part in waiting))
        routes.sort(key=lambda route: route != self._present)
        return routes

    def _claim_from(self, route: Route, limit: int) -> list[Claim]:
        chosen: list[tuple[Part, int, QueuedItem]] = []
        positions: list[tuple[Part, int]] = []
        parts = [part for part in self._parts.values() if part.route == route and part.position < part.end]
        for part in sorted(parts, key=lambda part: part.header.sequence):
            if len(chosen) >= limit:
                break
            found, position = part.choose(limit - len(chosen), self._claims, self._wanted)
            chosen += [(part, offset, item) for offset, item in found]
            positions.append((part, position))
        # Everything was read and checked; from here on only memory changes, so a refusal changes nothing.
        for part, position in positions:
            part.position = position
        now = self._monotonic()
        return [self._claims.take(part.header.uuid, offset, item, now) for part, offset, item in chosen]

    def _roll(self, segment: OpenSegment) -> None:
        try:
            self._appender.roll(segment)
        except SyncFailed as error:
            self._failed = error
            raise
        with self._state:
            self._part_of(segment).segment = None

    def _sync_markers(self) -> None:
        self._check()
        with self._state:
            dirty = [part for part in self._parts.values() if part.dirty]
            for part in dirty:
                part.dirty = False
        for part in dirty:
            try:
                part.file.sync()
            except SyncFailed as error:
                self._failed = error
                raise

    def _collect(self) -> int:
        done = [part for part in self._listed() if part.live == 0 and not part.growing]
        return sum(self._remove(part) for part in done)

    def _remove(self, part: Part, waiting: int = 0) -> bool:
        """Remove a segment in which no more than `waiting` items wait; False when it has to stay."""
        found = scan(part.file, part.header)
        new_damage = {gap.offset for gap in found.gaps if not gap.tail} - part.gaps
        if found.live > waiting or new_damage:
            return False
        if not refusing(part.file.path, self._disk.lock, part.file.fd, exclusive=True):
            return False
        # The records of these items were durable before their markers were set.
        remove_segment(self._disk, part.file)
        with self._state:
            del self._parts[part.header.uuid]
            part.close()
        return True


def retire_done(queue: Queue, results: Container[bytes]) -> int:
    """Recovery step 7: mark every item done whose identity has a record already; return how many."""
    return queue.retire_where(results)
