"""Packs and checks many entries at once: arithmetic over their fields in arrays, a checksum per entry in C.

What an entry is, `format` says; here the same is done for thousands at a time, in a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any, NamedTuple

import numpy as np
import xxhash
from attrs import frozen
from numpy.typing import NDArray

from fafo_run.log import format as layout
from fafo_run.log.format import ALIGN, ENTRY_MAGIC, ENTRY_SIZE, LIVE, MARKER_AT, MAX_PAYLOAD

_MAGIC = int.from_bytes(ENTRY_MAGIC, "little")
_FIELDS = np.dtype(
    [("magic", "<u4"), ("marker", "<u4"), ("length", "<u4"), ("word", "<u4"), ("identity", "V16"),
     ("checksum", "<u8")]
)  # fmt: skip
_COVERED = np.dtype(
    [("uuid", "V16"), ("offset", "<u8"), ("magic", "<u4"), ("length", "<u4"), ("word", "<u4"),
     ("identity", "V16")]
)  # fmt: skip
_PADDING = np.array([bytes(length) for length in range(ALIGN)], object)
Array = NDArray[Any]


class Frames(NamedTuple):
    """What entries will hold, before they have a place: element i of each belongs to entry i."""

    words: Sequence[int]
    """Kind and flags."""
    identities: Sequence[bytes]
    """16 bytes each."""
    payloads: Sequence[bytes]

    @classmethod
    def unnamed(cls, kind: layout.Kind, payloads: Sequence[bytes]) -> Frames:
        """Return what entries of a kind hold that has no identity."""
        count = len(payloads)
        return cls([kind] * count, [layout.NO_IDENTITY] * count, payloads)


class Entry(NamedTuple):
    """An entry whose checksum holds; a tuple because millions are read."""

    offset: int
    marker: int
    word: int
    """Kind and flags."""
    identity: bytes
    payload: bytes

    @property
    def kind(self) -> int:
        """What it holds: a `Kind`, or a number that this version doesn't know."""
        return self.word & layout.KIND_MASK

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.offset + layout.padded(len(self.payload))


_entry = partial(tuple.__new__, Entry)


@frozen(eq=False)
class Run:
    """Entries that follow each other, field by field: element i of each belongs to entry i."""

    data: bytes
    """Their bytes as they stand, and maybe others around."""
    at: int
    """Where in `data` the first one begins."""
    end: int
    """Where the next entry would begin, in bytes from the start of the segment."""
    offsets: Array
    markers: Array
    words: Array
    identities: Array
    """16 bytes each."""
    lengths: Array
    """Of the payloads, in bytes."""
    odd: Array
    """Whether each is followed by padding that isn't zero."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def kinds(self) -> Array:
        """What each holds."""
        return self.words & layout.KIND_MASK

    @property
    def bodies(self) -> Array:
        """Where in `data` each payload begins."""
        bodies: Array = self.offsets + (self.at + ENTRY_SIZE - self.offsets[0])
        return bodies

    def part(self, first: int, last: int) -> Run:
        """Return the entries from `first` up to but not with `last`; there is at least one."""
        of = slice(first, last)
        at = self.at + int(self.offsets[first] - self.offsets[0])
        end = self.end if last >= len(self) else int(self.offsets[last])
        return Run(
            self.data, at, end, self.offsets[of], self.markers[of], self.words[of], self.identities[of],
            self.lengths[of], self.odd[of],
        )  # fmt: skip

    def payload(self, at: int) -> bytes:
        """Return the payload of one entry."""
        begin = int(self.bodies[at])
        return self.data[begin : begin + int(self.lengths[at])]

    def names(self, which: Array) -> list[bytes]:
        """Return the identities of those where `which` is true."""
        return _cut(self.identities[which])

    def entries(self, which: Array | None = None) -> list[Entry]:
        """Return the entries one by one: all, or those where `which` is true."""
        chosen = np.flatnonzero(which) if which is not None else np.arange(len(self))
        fields = (self.offsets[chosen], self.markers[chosen], self.words[chosen])
        names = _cut(self.identities[chosen])
        payloads = map(self.data.__getitem__, _slices(self.bodies[chosen], self.lengths[chosen]))
        return list(map(_entry, zip(*(field.tolist() for field in fields), names, payloads, strict=True)))

    def masked(self, first: int, last: int) -> bytes | memoryview:
        """Return the bytes of the entries from `first` up to but not with `last`, every marker as LIVE."""
        begins = self.offsets[first:last]
        if not len(begins):
            return b""
        base = int(self.offsets[0]) - self.at
        stop = self.end if last >= len(self) else int(self.offsets[last])
        piece = memoryview(self.data)[int(begins[0]) - base : stop - base]
        if (self.markers[first:last] == LIVE).all():
            return piece
        masked = np.frombuffer(piece, "<u4").copy()
        masked[(begins - begins[0] + MARKER_AT) // 4] = LIVE
        return masked.tobytes()


def pack_entries(uuid: bytes, offset: int, frames: Frames) -> tuple[bytes, list[int]]:
    """Return LIVE entries that follow each other from `offset` on, and where each begins.

    Raises `ValueError` when a payload is too large.
    """
    words, identities, payloads = frames
    count = len(payloads)
    lengths = np.fromiter(map(len, payloads), np.int64, count)
    if count and lengths.max() > MAX_PAYLOAD:
        raise ValueError(f"a payload of {lengths.max()} bytes; at most {MAX_PAYLOAD} fit an entry")
    sizes = _padded(lengths)
    offsets = offset + np.cumsum(sizes) - sizes
    fields = np.empty(count, _FIELDS)
    fields["magic"], fields["marker"], fields["length"], fields["word"] = _MAGIC, LIVE, lengths, words
    fields["identity"] = np.frombuffer(b"".join(identities), "V16", count)
    fields["checksum"] = _checksums(uuid, offsets, fields, payloads)
    parts = [b""] * (3 * count)
    parts[0::3] = _cut(fields)
    parts[1::3] = payloads
    parts[2::3] = _PADDING[sizes - ENTRY_SIZE - lengths]
    return b"".join(parts), offsets.tolist()


def check_entries(uuid: bytes, data: bytes, base: int, at: int, *, trusted: bool = False) -> Run | None:
    """Return the valid entries that follow each other in `data` from `at` on, None when there is none.

    `base` is where `data` begins in the segment. What isn't whole within `data` isn't looked at. Checksums
    are `trusted` by who has looked at them before.
    """
    starts = _starts(data, at)
    count = len(starts)
    if not count:
        return None
    longs = np.frombuffer(data, "<u8", len(data) // 8)
    fields = longs[starts[:, None] // 8 + np.arange(ENTRY_SIZE // 8)].view(_FIELDS)[:, 0]
    if not trusted:
        count = _valid(uuid, data, base, starts, fields)
        if not count:
            return None
        starts, fields = starts[:count], fields[:count]
    stops = starts + ENTRY_SIZE + fields["length"]
    ends = stops + ALIGN - 1 & -ALIGN
    padding = (ends - stops).astype("<u8")
    # The padding is the highest bytes of an entry's last eight.
    left = longs[ends // 8 - 1] >> (64 - 8 * np.maximum(padding, 1)).astype("<u8")
    odd = (padding > 0) & (left > 0)
    return Run(
        data, at, base + int(ends[-1]), starts + base, fields["marker"], fields["word"], fields["identity"],
        fields["length"], odd,
    )  # fmt: skip


def _valid(uuid: bytes, data: bytes, base: int, starts: Array, fields: Array) -> int:
    """Return how many entries from the first on have a checksum that holds."""
    # One after the other: each is copied into memory that the one before has just left.
    payloads = map(data.__getitem__, _slices(starts + ENTRY_SIZE, fields["length"]))
    holds = _checksums(uuid, starts + base, fields, payloads) == fields["checksum"]
    return len(starts) if holds.all() else int(holds.argmin())


def _starts(data: bytes, at: int) -> Array:
    """Return where entries may begin that follow each other from `at` on, each whole within `data`."""
    words = np.frombuffer(data, "<u4", (len(data) - at) // 8 * 2, at)
    found = np.flatnonzero(words[::2] == _MAGIC) * 8
    found = found[found <= len(data) - at - ENTRY_SIZE]
    if not len(found) or found[0] != 0:
        return found[:0]
    ends = found + _padded(words[found // 4 + 2].astype(np.int64))
    if ends[-1] > len(data) - at:
        found, ends = found[:-1], ends[:-1]
    if (ends[:-1] == found[1:]).all():
        return found + at
    # Some payload has the magic in it, or there is a gap: one after the other, then.
    starts, begin = [], 0
    step = dict(zip(found.tolist(), ends.tolist(), strict=True))
    while begin in step and step[begin] <= len(data) - at:
        starts.append(begin)
        begin = step[begin]
    return np.array(starts, np.int64) + at


def _slices(begins: Array, lengths: Array) -> Iterator[slice]:
    return map(slice, begins.tolist(), (begins + lengths).tolist())


def _padded(lengths: Array) -> Array:
    return lengths + (ENTRY_SIZE + ALIGN - 1) & -ALIGN


def _checksums(uuid: bytes, offsets: Array, fields: Array, payloads: Iterable[bytes | memoryview]) -> Array:
    covered = np.empty(len(fields), _COVERED)
    covered["uuid"], covered["offset"] = np.void(uuid), offsets
    for name in ("magic", "length", "word", "identity"):
        covered[name] = fields[name]
    whole = map(add, _cut(covered), payloads)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, whole), "<u8", len(fields))


def _cut(array: Array) -> list[bytes]:
    """Return the bytes of each element of an array."""
    cut: list[bytes] = array.view(f"V{array.itemsize}").tolist()
    return cut
