import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fafo_run.item import pack_ids
from fafo_run.log.format import WIDE, Kind
from fafo_run.log.payload import (
    ProvenanceCache,
    Undecodable,
    encode,
    ids_of,
    number_provenance,
    numbered,
    pack_provenance,
    unpack,
    unpack_provenance,
)
from tests.log_nouns import FAKE, JUDGE


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_round_trip(ids):
    packed = pack_ids(ids)
    assert ids_of(WIDE if packed.wide else 0, packed.data) == tuple(ids)
    assert ids_of(WIDE, packed.widened().data) == tuple(ids)


@pytest.mark.parametrize(("top", "wide", "size"), [(65_535, False, 2), (65_536, True, 4)])
def test_ids_are_u16_when_all_fit(top, wide, size):
    packed = pack_ids((0, top))
    assert (packed.wide, packed.data) == (wide, bytes(size) + top.to_bytes(size, "little"))


def test_ids_beyond_u32_are_refused():
    with pytest.raises(OverflowError):
        pack_ids((2**32,))


def test_half_an_id_is_undecodable():
    with pytest.raises(Undecodable):
        ids_of(WIDE, b"\1\2\3")


@pytest.mark.parametrize("said", [JUDGE, FAKE])
def test_provenance_round_trip(said):
    assert unpack_provenance(number_provenance(3, pack_provenance(said))) == (3, said)


def test_equal_provenance_packs_to_equal_bytes():
    cache = ProvenanceCache(limit=1)
    again = unpack_provenance(number_provenance(0, pack_provenance(FAKE)))[1]
    assert again is not FAKE and cache.pack(FAKE, 512) == cache.pack(again, 512)
    assert cache.pack(JUDGE, 512) != cache.pack(FAKE, 512) != cache.pack(FAKE, 64)


@pytest.mark.parametrize("others", [10, 14, 15, 17])
@pytest.mark.parametrize("number", [0, 1, 127, 128, 70_000])
def test_a_payload_that_was_packed_before_its_provenance_had_a_number(others, number):
    fields = (b"ids", *range(others - 1))
    assert numbered(encode((0, *fields)), number) == encode((number, *fields))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", b"\x93\x01\x02\x03"])
def test_what_is_no_payload(payload):
    with pytest.raises(Undecodable):
        unpack(payload, Kind.OUTPUT)
