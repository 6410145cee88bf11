import struct

import pytest
import xxhash
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_run.log import format as layout
from fafo_run.log.format import Header, Kind, Seal, SegmentKind

HEADER = Header(
    SegmentKind.RESULTS, 7, bytes(range(16)), b"m" * 32, b"a" * 32, 512, 1_700_000_000_000_000_000
)


def test_markers_are_bitwise_complements():
    assert layout.LIVE ^ layout.RETIRED == 0xFFFF_FFFF


def test_header_round_trip():
    data = layout.pack_header(HEADER)
    assert len(data) == 4096
    assert layout.unpack_header(data) == (HEADER, True)


def test_header_bytes_are_where_the_picture_says():
    data = layout.pack_header(HEADER)
    assert data[:8] == b"FAFOSEG\n"
    assert struct.unpack_from("<IIQ", data, 8) == (2, 2, 7)
    assert data[24:40] == bytes(range(16))
    assert struct.unpack_from("<IIq", data, 104) == (512, 0, 1_700_000_000_000_000_000)
    assert struct.unpack_from("<Q", data, 2040)[0] == xxhash.xxh3_64_intdigest(data[:2040])
    assert data[:2048] == data[2048:]


def test_any_flipped_bit_of_a_header_leaves_the_other_copy():
    data = layout.pack_header(HEADER)
    for at in range(4096):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        assert layout.unpack_header(bytes(broken)) == (HEADER, False)


@pytest.mark.parametrize("data", [b"", bytes(4096), b"FAFOSEG\n", bytes(2048) + b"\xff" * 2048])
def test_what_is_no_header(data):
    assert layout.unpack_header(data) == (None, False)


def test_header_of_another_version_is_told_apart_from_damage():
    body = bytearray(layout.pack_header(HEADER)[:2040])
    struct.pack_into("<I", body, 8, 3)
    copy = bytes(body) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(body)))
    with pytest.raises(layout.Unversioned) as caught:
        layout.unpack_header(copy * 2)
    assert caught.value.version == 3


def test_header_refuses_hashes_of_another_size():
    with pytest.raises(ValueError, match="32"):
        layout.pack_header(evolve(HEADER, artifact=b"short"))


@settings(deadline=None, max_examples=30)
@given(payload=st.binary(max_size=200), offset=st.integers(512, 1 << 40).map(lambda n: n * 8))
def test_entry_bytes(payload, offset):
    data = layout.pack_entry(HEADER.uuid, offset, Kind.OUTPUT | layout.WIDE, b"i" * 16, payload)
    assert len(data) % 8 == 0 and len(data) == layout.padded(len(payload))
    fields = layout.unpack_fields(data)
    assert fields[:5] == (b"\xfa\xf0EN", 0x4C495645, len(payload), 2 | 1 << 31, b"i" * 16)
    covered = HEADER.uuid + struct.pack("<Q", offset) + data[:4] + data[8:32] + payload
    assert fields.checksum == xxhash.xxh3_64_intdigest(covered)
    assert data[40 : 40 + len(payload)] == payload and not any(data[40 + len(payload) :])


def test_entry_refuses_a_payload_over_the_cap(monkeypatch):
    monkeypatch.setattr(layout, "MAX_PAYLOAD", 8)
    with pytest.raises(ValueError, match="9 bytes"):
        layout.pack_entry(HEADER.uuid, 4096, Kind.ITEM, bytes(16), bytes(9))


def test_seal_round_trip():
    seal = Seal(3, 5000, 2**64 - 1)
    assert layout.unpack_seal(layout.pack_seal(seal)) == seal
    assert layout.unpack_seal(b"x") is None
