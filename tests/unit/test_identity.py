"""Identities never change: the golden ones were made by an independent encoder, and hold for ever."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fafo_run.identity import content_hash, identity, seed

PARTS = {
    "artifact": "11" * 32,
    "sampling_hash": "22" * 32,
    "model_fingerprint": "33" * 32,
    "source": "elements",
    "key": "Fe",
    "row": bytes(range(32)),
    "sample": 0,
}


def test_golden_content_hash() -> None:
    fields = {"b": None, "a": 1, "ä": [True, -1, 2**63, 0.5, "日"], "c": {"y": 1, "x": 2}}
    assert content_hash(fields).hex() == "be933011a95e27522d5318c158477f29a27d6b9cd085ffafed35bf944508e56b"


def test_golden_identity() -> None:
    assert identity(**PARTS).hex() == "58bbce772f3fda2022fe5c660c56af54"


def test_identity_is_what_the_format_says() -> None:
    # MessagePack by hand: an array of 7; bin8 of 32 bytes; fixstr; a positive fixint.
    encoded = b"\x97"
    for part in (b"\x11" * 32, b"\x22" * 32, b"\x33" * 32):
        encoded += b"\xc4\x20" + part
    encoded += b"\xa8elements" + b"\xa2Fe" + b"\xc4\x20" + bytes(range(32)) + b"\x00"
    assert identity(**PARTS) == hashlib.sha256(encoded).digest()[:16]


def test_content_hash_is_what_the_format_says() -> None:
    # Keys sorted by their text, whole numbers in the shortest form, floats in 64 bits.
    encoded = (
        b"\x83" + b"\xa1a" + b"\xcd\x01\x00" + b"\xa1b" + b"\xcb" + struct.pack(">d", 2.0) + b"\xa1c\xc0"
    )
    assert content_hash({"c": None, "b": 2.0, "a": 256}) == hashlib.sha256(encoded).digest()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("artifact", "12" * 32),
        ("sampling_hash", "23" * 32),
        ("model_fingerprint", "34" * 32),
        ("source", "element"),
        ("key", "fe"),
        ("row", bytes(32)),
        ("sample", 1),
    ],
)
def test_each_part_makes_another_identity(part: str, value: object) -> None:
    assert identity(**{**PARTS, part: value}) != identity(**PARTS)  # type: ignore[arg-type]


def test_parts_do_not_run_into_each_other() -> None:
    assert identity(**{**PARTS, "source": "ab", "key": "c"}) != identity(
        **{**PARTS, "source": "a", "key": "bc"}
    )


def test_content_hash_tells_types_apart() -> None:
    values = [None, "", 0, 0.0, False, "0", [], {}, "null", [None], {"a": None}]
    assert len({content_hash({"x": value}) for value in values}) == len(values)


def test_content_hash_refuses_numbers_beyond_64_bits() -> None:
    content_hash({"x": 2**64 - 1, "y": -(2**63)})
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError):
            content_hash({"x": [number]})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values), st.randoms())
def test_content_hash_ignores_the_order_of_columns_at_every_depth(fields: dict[str, object], random) -> None:
    def shuffled(value: object) -> object:
        if isinstance(value, dict):
            items = [(key, shuffled(inner)) for key, inner in value.items()]
            random.shuffle(items)
            return dict(items)
        if isinstance(value, list):
            return [shuffled(inner) for inner in value]
        return value

    assert content_hash(shuffled(fields)) == content_hash(fields)  # type: ignore[arg-type]


@given(st.binary(min_size=16, max_size=16))
def test_seed_has_31_bits_and_comes_from_the_identity(name: bytes) -> None:
    assert 0 <= seed(name) < 2**31
    assert seed(name) == seed(name)


def test_golden_seed() -> None:
    assert seed(bytes.fromhex("ffffffff" + "00" * 12)) == 0x7FFF_FFFF
    assert seed(bytes.fromhex("01020304" + "ff" * 12)) == 0x0403_0201
