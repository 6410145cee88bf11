"""Reads segments: the header, single entries, and a walk that finds its way round damage.

Nothing here writes. Bytes are read with pread and never through a mapping, so a file that is cut under a
reader ends early and does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import xxhash
from attrs import Factory, define, frozen

from fafo_build.errors import Problem, StoreError
from fafo_run.log import format as layout
from fafo_run.log.batch import Entry, Run, check_entries
from fafo_run.log.format import (
    ALIGN,
    ENTRY_MAGIC,
    ENTRY_SIZE,
    HEADER_SIZE,
    LIVE,
    MAX_PAYLOAD,
    RETIRED,
    Header,
    Kind,
    Seal,
    Unversioned,
)
from fafo_run.log.fs import File

_WINDOW = 2 << 20
"""Bytes read at once: about what stays in a core's cache while it is looked at more than once."""
_UNPROVEN = 16 << 20
"""The most bytes that wait in memory for a COMMIT."""


class OtherVersion(StoreError):
    """A whole segment of a format version that this fafo doesn't know: not damaged, and not to be touched."""


@frozen
class Gap:
    """Bytes that are no valid entry."""

    offset: int
    length: int
    reason: str
    tail: bool
    """True when no valid entry follows."""


@frozen
class Scan:
    """What a whole walk of one segment found."""

    header: Header
    size: int
    """Of the file, in bytes."""
    end: int
    """Where the last valid entry ends: the log ends here, whatever the file's size is."""
    count: int
    """Valid entries of all kinds but SEAL."""
    live: int
    """Valid entries that aren't RETIRED, without SEAL, PROVENANCE and COMMIT."""
    odd_markers: int
    """Entries with a marker that is neither LIVE nor RETIRED; they read as LIVE."""
    odd_padding: int
    """Valid entries followed by padding that isn't zero."""
    gaps: tuple[Gap, ...]
    seal: Seal | None
    """Set when the last valid entry is a SEAL that stands where it says."""
    hasher: xxhash.xxh3_64
    """Has taken the valid entries before the seal, markers read as LIVE."""
    provenance: tuple[Entry, ...]

    @property
    def digest(self) -> int:
        """What a seal says of the content."""
        return self.hasher.intdigest()

    @property
    def damage(self) -> tuple[str, ...]:
        """What is wrong with a sealed segment, one line each; empty when it is whole or not sealed."""
        if self.seal is None:
            return ()
        found = [f"{gap.length} bytes at {gap.offset}: {gap.reason}" for gap in self.gaps]
        if self.seal.count != self.count:
            found.append(f"the seal counts {self.seal.count} entries, {self.count} are readable")
        if self.seal.digest != self.digest and not found:
            found.append("the content isn't what was sealed")
        return tuple(found)


class _Window:
    """A file's bytes up to `size`, read in large pieces."""

    def __init__(self, file: File, size: int, piece: int = _WINDOW) -> None:
        self.file = file
        self.size = size
        self.piece = piece
        self.base = 0
        self.data = b""

    def locate(self, offset: int, length: int) -> int | None:
        """Return where `offset` is in `self.data` with `length` bytes behind it; None past the end."""
        at = offset - self.base
        if at >= 0 and at + length <= len(self.data):
            return at
        if offset + length > self.size:
            return None
        want = min(max(length, self.piece), self.size - offset)
        self.base, self.data = offset, self.file.read_at(offset, want)
        return 0 if length <= len(self.data) else None


def read_header(file: File) -> tuple[Header | None, bool]:
    """Return a segment's header, or None when there is no whole one, and whether both copies are whole.

    Raises `OtherVersion`, and `StoreError` when the disk refuses.
    """
    try:
        return layout.unpack_header(file.read_at(0, HEADER_SIZE))
    except Unversioned as error:
        message = f"the segment has format version {error.version}, this fafo reads {layout.VERSION}"
        cure = "use the version of fafo that wrote it"
        raise OtherVersion(Problem(message, file=str(file.path), cure=cure)) from error


def read_entry(file: File, header: Header, offset: int) -> Entry | None:
    """Return the entry at `offset`, None when what stands there is no valid entry of this segment."""
    found = file.read_at(offset, ENTRY_SIZE)
    if len(found) < ENTRY_SIZE:
        return None
    length = layout.unpack_fields(found).length
    size = offset + layout.padded(min(length, MAX_PAYLOAD))
    return _entry(_Window(file, min(size, file.size())), header.uuid, offset)


def runs(
    file: File,
    header: Header,
    start: int = HEADER_SIZE,
    end: int | None = None,
    digest: xxhash.xxh3_64 | None = None,
    piece: int = _WINDOW,
    *,
    trusted: bool = False,
) -> Iterator[Run | Gap]:
    """Yield the valid entries from `start` to `end` (the file's size), many at once, and every gap, in order.

    What is written after the walk began isn't seen. `digest` takes all valid entries but a SEAL, markers as
    LIVE: recovery cuts what is behind them, and seals what is left. `piece` is how many bytes are
    read at once. Whoever has walked the same bytes before may have their checksums `trusted`.
    """
    window = _Window(file, file.size() if end is None else end, piece)
    offset = start
    while offset < window.size:
        found = _run(window, header.uuid, offset, trusted)
        if isinstance(found, Run):
            if digest is not None:
                _feed(digest, found)
            yield found
            offset = found.end
            continue
        resume = _resume(window, header.uuid, offset + ALIGN)
        stop = window.size if resume is None else resume
        yield Gap(offset, stop - offset, found, resume is None)
        offset = stop


def walk(
    file: File, header: Header, start: int = HEADER_SIZE, end: int | None = None, piece: int = _WINDOW
) -> Iterator[Entry | Gap]:
    """Yield what `runs` yields, entry by entry."""
    for found in runs(file, header, start, end, piece=piece):
        if isinstance(found, Run):
            yield from found.entries()
        else:
            yield found


def _run(window: _Window, uuid: bytes, offset: int, trusted: bool) -> Run | str:
    """Return the entries that follow each other from `offset` on, or why there is none."""
    at = window.locate(offset, ENTRY_SIZE)
    if at is None:
        return "the file ends within an entry"
    magic, _, length, *_ = layout.unpack_fields(window.data, at)
    if magic != ENTRY_MAGIC:
        return "no entry begins here"
    if length > MAX_PAYLOAD:
        return f"the length field says {length}, more than an entry may have"
    at = window.locate(offset, layout.padded(length))
    if at is None:
        return "the file ends within an entry"
    found = check_entries(uuid, window.data, window.base, at, trusted=trusted)
    return "the checksum doesn't hold" if found is None else found


def _entry(window: _Window, uuid: bytes, offset: int) -> Entry | None:
    """Return the one entry at `offset`; None when there is no valid one."""
    at = window.locate(offset, ENTRY_SIZE)
    if at is None:
        return None
    magic, marker, length, word, identity, total = layout.unpack_fields(window.data, at)
    if magic != ENTRY_MAGIC or length > MAX_PAYLOAD:
        return None
    at = window.locate(offset, layout.padded(length))
    if at is None:
        return None
    payload = window.data[at + ENTRY_SIZE : at + ENTRY_SIZE + length]
    if layout.checksum(uuid, offset, length, word, identity, payload) != total:
        return None
    return Entry(offset, marker, word, identity, payload)


def _resume(window: _Window, uuid: bytes, offset: int) -> int | None:
    """Return the offset of the next valid entry from `offset` on, None when there is none."""
    while (at := window.locate(offset, ENTRY_SIZE)) is not None:
        found = window.data.find(ENTRY_MAGIC, at)
        if found < 0:
            # The magic may lie across the window's end; offsets stay aligned, so step to the last whole word.
            offset = window.base + max(at + ALIGN, (len(window.data) - ALIGN) & -ALIGN)
            continue
        candidate = window.base + found
        if candidate % ALIGN == 0 and _entry(window, uuid, candidate) is not None:
            return candidate
        offset = candidate + ALIGN & -ALIGN
    return None


def _feed(digest: xxhash.xxh3_64, run: Run) -> None:
    begin = 0
    for seal in [*np.flatnonzero(run.kinds == Kind.SEAL).tolist(), len(run)]:
        digest.update(run.masked(begin, seal))
        begin = seal + 1


@define
class _Sums:
    """What a scan has seen so far."""

    visit: Callable[[Entry], None] | None
    digest: xxhash.xxh3_64 = Factory(xxhash.xxh3_64)
    end: int = HEADER_SIZE
    count: int = 0
    live: int = 0
    odd_markers: int = 0
    odd_padding: int = 0
    gaps: list[Gap] = Factory(list)
    seal: Seal | None = None
    provenance: list[Entry] = Factory(list)

    def add(self, run: Run) -> None:
        """Take entries in; the digest isn't touched."""
        kinds, retired = run.kinds, run.markers == RETIRED
        sealing, saying = kinds == Kind.SEAL, kinds == Kind.PROVENANCE
        self.end = run.end
        self.count += int(np.count_nonzero(~sealing))
        self.live += int(np.count_nonzero(~(retired | saying | sealing | (kinds == Kind.COMMIT))))
        self.odd_markers += int(np.count_nonzero(~retired & (run.markers != LIVE)))
        self.odd_padding += int(np.count_nonzero(run.odd))
        if saying.any():
            self.provenance += run.entries(saying)
        self.seal = _seal_at_the_end(run) if sealing[-1] else None
        if self.visit is not None:
            for entry in run.entries(~sealing):
                self.visit(entry)


def scan(file: File, header: Header, visit: Callable[[Entry], None] | None = None) -> Scan:
    """Walk a whole segment, give every valid entry but the seal to `visit`, and return what was found.

    The content up to the last COMMIT or seal that vouches for it is proven by one digest; the checksum of
    each entry is looked at only in what follows.
    """
    size = file.size()
    sums = _Sums(visit)
    _take_proven(file, header, size, sums)
    for found in runs(file, header, sums.end, size, digest=sums.digest):
        if isinstance(found, Gap):
            sums.gaps.append(found)
        else:
            sums.add(found)
    return Scan(
        header, size, sums.end, sums.count, sums.live, sums.odd_markers, sums.odd_padding, tuple(sums.gaps),
        sums.seal, sums.digest, tuple(sums.provenance),
    )  # fmt: skip


def _take_proven(file: File, header: Header, size: int, sums: _Sums) -> None:
    """Take in the entries before the last COMMIT or seal whose digest holds."""
    digest = xxhash.xxh3_64()
    unproven: list[Run] = []
    for found in runs(file, header, end=size, trusted=True):
        if isinstance(found, Gap) or found.end - sums.end > _UNPROVEN:
            return
        vouching = np.flatnonzero((found.kinds == Kind.COMMIT) | (found.kinds == Kind.SEAL))
        last = int(vouching[-1]) if len(vouching) else 0
        if len(vouching):
            digest.update(found.masked(0, last))
            if _vouched(found, last) != digest.intdigest():
                return
            for run in (*unproven, *([found.part(0, last)] if last else ())):
                sums.add(run)
            sums.digest = digest.copy()
            unproven = []
            if found.kinds[last] == Kind.SEAL:
                return
        digest.update(found.masked(last, len(found)))
        unproven.append(found.part(last, len(found)))


def _vouched(run: Run, at: int) -> int | None:
    """Return what a COMMIT or a seal says of the content before it."""
    payload = run.payload(at)
    if run.kinds[at] == Kind.COMMIT:
        return layout.unpack_commit(payload)
    seal = layout.unpack_seal(payload)
    return seal.digest if seal is not None else None


def _seal_at_the_end(run: Run) -> Seal | None:
    (entry,) = run.entries(run.offsets == run.offsets[-1])
    seal = layout.unpack_seal(entry.payload)
    return seal if seal is not None and seal.end == run.offsets[-1] else None


def seal_of(file: File, header: Header) -> Seal | None:
    """Return the seal at the very end of the file, without a walk; None when none stands there."""
    offset = file.size() - layout.padded(layout.SEAL_PAYLOAD)
    if offset < HEADER_SIZE:
        return None
    entry = read_entry(file, header, offset)
    if entry is None or entry.kind != Kind.SEAL:
        return None
    seal = layout.unpack_seal(entry.payload)
    return seal if seal is not None and seal.end == offset else None
