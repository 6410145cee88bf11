"""Reads segments: the header, single entries, and a walk that finds its way round damage.

Nothing here writes. Bytes are read with pread and never through a mapping, so a file that is cut under a
reader ends early and does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import xxhash
from attrs import frozen

from fafo_build.errors import Problem, StoreError
from fafo_run.log import format as layout
from fafo_run.log.format import (
    ALIGN,
    ENTRY_MAGIC,
    ENTRY_SIZE,
    HEADER_SIZE,
    LIVE,
    LIVE_BYTES,
    MAX_PAYLOAD,
    RETIRED,
    Header,
    Kind,
    Seal,
    Unversioned,
)
from fafo_run.log.fs import File

_WINDOW = 4 << 20
"""Bytes read at once."""


class Entry(NamedTuple):
    """An entry whose checksum holds; a tuple because millions are read."""

    offset: int
    marker: int
    word: int
    """Kind and flags."""
    identity: bytes
    payload: bytes
    clean_padding: bool

    @property
    def kind(self) -> int:
        """What it holds: a `Kind`, or a number that this version doesn't know."""
        return self.word & layout.KIND_MASK

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.offset + layout.padded(len(self.payload))


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
    """Valid entries that aren't RETIRED, without SEAL and PROVENANCE."""
    odd_markers: int
    """Entries with a marker that is neither LIVE nor RETIRED; they read as LIVE."""
    odd_padding: int
    """Valid entries followed by padding that isn't zero."""
    gaps: tuple[Gap, ...]
    seal: Seal | None
    """Set when the last valid entry is a SEAL that stands where it says."""
    hasher: xxhash.xxh3_64
    """Has taken the content before the seal, markers read as LIVE."""
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

    Raises `StoreError` for a segment of another format version.
    """
    try:
        return layout.unpack_header(file.read_at(0, HEADER_SIZE))
    except Unversioned as error:
        message = f"the segment has format version {error.version}, this fafo reads {layout.VERSION}"
        cure = "use the version of fafo that wrote it"
        raise StoreError(Problem(message, file=str(file.path), cure=cure)) from error


def read_entry(file: File, header: Header, offset: int) -> Entry | None:
    """Return the entry at `offset`, None when what stands there is no valid entry of this segment."""
    found = file.read_at(offset, ENTRY_SIZE)
    if len(found) < ENTRY_SIZE:
        return None
    length = layout.unpack_fields(found).length
    size = offset + layout.padded(min(length, MAX_PAYLOAD))
    entry = _entry(_Window(file, min(size, file.size())), header.uuid, offset)
    return entry if isinstance(entry, Entry) else None


def walk(
    file: File,
    header: Header,
    start: int = HEADER_SIZE,
    end: int | None = None,
    digest: xxhash.xxh3_64 | None = None,
    piece: int = _WINDOW,
) -> Iterator[Entry | Gap]:
    """Yield every valid entry from `start` to `end` (the file's size) and every gap, in order.

    What is written after the walk began isn't seen. `digest` takes all bytes but a SEAL's, markers as LIVE,
    up to the last valid entry: recovery cuts the rest, and seals what is left. `piece` is how many bytes are
    read at once.
    """
    window = _Window(file, file.size() if end is None else end, piece)
    offset = start
    while offset < window.size:
        found = _entry(window, header.uuid, offset)
        if isinstance(found, Entry):
            if digest is not None and found.kind != Kind.SEAL:
                _feed(window, digest, offset, found.end)
            yield found
            offset = found.end
            continue
        resume = _resume(window, header.uuid, offset + ALIGN)
        stop = window.size if resume is None else resume
        if digest is not None and resume is not None:
            for at in range(offset, stop, _WINDOW):
                digest.update(file.read_at(at, min(_WINDOW, stop - at)))
        yield Gap(offset, stop - offset, found, resume is None)
        offset = stop


def _entry(window: _Window, uuid: bytes, offset: int) -> Entry | str:
    """Return the entry at `offset`, or why there is none."""
    at = window.locate(offset, ENTRY_SIZE)
    if at is None:
        return "the file ends within an entry"
    magic, marker, length, word, identity, total = layout.unpack_fields(window.data, at)
    if magic != ENTRY_MAGIC:
        return "no entry begins here"
    if length > MAX_PAYLOAD:
        return f"the length field says {length}, more than an entry may have"
    size = layout.padded(length)
    at = window.locate(offset, size)
    if at is None:
        return "the file ends within an entry"
    stop = at + ENTRY_SIZE + length
    payload = window.data[at + ENTRY_SIZE : stop]
    if layout.checksum(uuid, offset, length, word, identity, payload) != total:
        return "the checksum doesn't hold"
    return Entry(offset, marker, word, identity, payload, not any(window.data[stop : at + size]))


def _resume(window: _Window, uuid: bytes, offset: int) -> int | None:
    """Return the offset of the next valid entry from `offset` on, None when there is none."""
    while (at := window.locate(offset, ENTRY_SIZE)) is not None:
        found = window.data.find(ENTRY_MAGIC, at)
        if found < 0:
            # The magic may lie across the window's end; offsets stay aligned, so step to the last whole word.
            offset = window.base + max(at + ALIGN, (len(window.data) - ALIGN) & -ALIGN)
            continue
        candidate = window.base + found
        if candidate % ALIGN == 0 and isinstance(_entry(window, uuid, candidate), Entry):
            return candidate
        offset = candidate + ALIGN & -ALIGN
    return None


def _feed(window: _Window, digest: xxhash.xxh3_64, offset: int, end: int) -> None:
    at = window.locate(offset, end - offset)
    if at is not None:
        digest.update(window.data[at : at + 4])
        digest.update(LIVE_BYTES)
        digest.update(window.data[at + 8 : at + end - offset])


def scan(file: File, header: Header, visit: Callable[[Entry], None] | None = None) -> Scan:
    """Walk a whole segment, give every valid entry but the seal to `visit`, and return what was found."""
    digest = xxhash.xxh3_64()
    size = file.size()
    count = live = odd_markers = odd_padding = 0
    end = HEADER_SIZE
    seal: Seal | None = None
    gaps: list[Gap] = []
    provenance: list[Entry] = []
    for found in walk(file, header, end=size, digest=digest):
        if isinstance(found, Gap):
            gaps.append(found)
            continue
        end = found.end
        odd_padding += not found.clean_padding
        odd_markers += found.marker not in (LIVE, RETIRED)
        if found.kind == Kind.SEAL:
            seal = layout.unpack_seal(found.payload)
            if seal is not None and seal.end != found.offset:
                seal = None
            continue
        seal = None
        count += 1
        if found.kind == Kind.PROVENANCE:
            provenance.append(found)
        else:
            live += found.marker != RETIRED
        if visit is not None:
            visit(found)
    return Scan(
        header, size, end, count, live, odd_markers, odd_padding, tuple(gaps), seal,
        digest, tuple(provenance),
    )  # fmt: skip


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
