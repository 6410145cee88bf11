"""Many entries at once give the bytes, and find the entries, that one at a time gives and finds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_run.log.batch import Frames, check_entries, pack_entries
from fafo_run.log.format import (
    ENTRY_MAGIC,
    HEADER_SIZE,
    LIVE,
    MARKER_AT,
    MAX_PAYLOAD,
    RETIRED,
    WIDE,
    Kind,
    pack_entry,
)

UUID = bytes(range(16))

payloads = st.one_of(
    st.binary(max_size=40),
    # What looks like entries, at places where entries may begin.
    st.integers(0, 5).map(lambda times: ENTRY_MAGIC * 2 * times),
    st.just(pack_entry(UUID, HEADER_SIZE, 1, bytes(16), b"within")),
)
Drawn = list[tuple[int, bytes, bytes]]
"""Word, identity and payload of each entry."""
entries: st.SearchStrategy[Drawn] = st.lists(
    st.tuples(
        st.sampled_from([Kind.ITEM, Kind.OUTPUT | WIDE]), st.binary(min_size=16, max_size=16), payloads
    ),
    max_size=9,
)


def frames(drawn: Drawn) -> Frames:
    return Frames(*([entry[field] for entry in drawn] for field in range(3)))


def one_by_one(drawn: Drawn, offset: int = HEADER_SIZE) -> tuple[bytes, list[int]]:
    data, offsets = b"", []
    for entry in drawn:
        offsets.append(offset + len(data))
        data += pack_entry(UUID, offset + len(data), *entry)
    return data, offsets


@given(entries)
def test_packed_at_once_as_one_by_one(drawn):
    assert pack_entries(UUID, HEADER_SIZE, frames(drawn)) == one_by_one(drawn)


@given(entries)
def test_checked_at_once_as_packed(drawn):
    data, offsets = one_by_one(drawn)
    run = check_entries(UUID, data, HEADER_SIZE, 0)
    if not drawn:
        assert run is None
        return
    found = run.entries()
    assert [entry.offset for entry in found] == offsets
    assert [(entry.word, entry.identity, entry.payload) for entry in found] == drawn
    assert run.names(run.words >= 0) == [identity for _, identity, _ in drawn]
    assert {entry.marker for entry in found} == {LIVE} and run.end == HEADER_SIZE + len(data)
    assert not run.odd.any() and len(run) == len(drawn)
    assert bytes(run.masked(0, len(run))) == data


@settings(max_examples=200)
@given(entries.filter(len), st.data())
def test_a_damaged_entry_ends_the_run_before_it(drawn, data):
    whole, offsets = one_by_one(drawn)
    at = data.draw(st.integers(0, len(whole) - 1))
    number = max(n for n, offset in enumerate(offsets) if offset - HEADER_SIZE <= at)
    begin = offsets[number] - HEADER_SIZE
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    run = check_entries(UUID, bytes(damaged), HEADER_SIZE, 0)
    found = [] if run is None else run.entries()
    in_marker = MARKER_AT <= at - begin < MARKER_AT + 4
    in_padding = at >= begin + 40 + len(drawn[number][2])
    if in_marker or in_padding:
        assert len(found) == len(drawn)
        assert int(run.odd.sum()) == in_padding
        assert (found[number].marker == LIVE) == in_padding
    else:
        assert [entry.offset for entry in found] == offsets[:number]


@given(entries.filter(len), st.data())
def test_what_isnt_whole_is_left_for_later(drawn, data):
    whole, offsets = one_by_one(drawn)
    cut = data.draw(st.integers(0, len(whole)))
    run = check_entries(UUID, whole[:cut], HEADER_SIZE, 0)
    ends = [*offsets[1:], HEADER_SIZE + len(whole)]
    expected = sum(end - HEADER_SIZE <= cut for end in ends)
    assert (0 if run is None else len(run)) == expected


def test_a_run_begins_anywhere_and_shows_markers_as_live():
    drawn = [(Kind.ITEM, bytes(16), random.Random(n).randbytes(n)) for n in range(50)]
    data, offsets = one_by_one(drawn)
    retired = bytearray(data)
    for offset in offsets[1::3]:
        at = offset - HEADER_SIZE + MARKER_AT
        retired[at : at + 4] = RETIRED.to_bytes(4, "little")
    junk = b"\xff" * 64
    begin = offsets[7] - HEADER_SIZE
    run = check_entries(UUID, junk + bytes(retired[begin:]), offsets[7] - 64, 64)
    assert [entry.offset for entry in run.entries()] == offsets[7:]
    assert [int(at) for at in run.offsets[run.markers == RETIRED]] == offsets[7::3]
    assert [entry.offset for entry in run.entries(run.markers == RETIRED)] == offsets[7::3]
    assert bytes(run.masked(0, len(run))) == data[begin:]
    assert bytes(run.masked(2, 5)) == data[offsets[9] - HEADER_SIZE : offsets[12] - HEADER_SIZE]
    assert bytes(run.masked(3, 3)) == b""


def test_another_segments_bytes_are_refused():
    data, _ = one_by_one([(Kind.ITEM, bytes(16), b"x")])
    assert check_entries(bytes(16), data, HEADER_SIZE, 0) is None
    assert check_entries(UUID, data, HEADER_SIZE + 8, 0) is None


def test_a_payload_that_is_too_large():
    with pytest.raises(ValueError, match="at most"):
        pack_entries(UUID, HEADER_SIZE, frames([(Kind.ITEM, bytes(16), bytes(MAX_PAYLOAD + 1))]))
