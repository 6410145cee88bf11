"""The head of a GGUF file, read by hand, against the `gguf` package and against damage."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fafo_build.errors import ModelError
from fafo_build.tokens.gguf_file import head_sha256, read_gguf, shortest_float32
from tests import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", quantised=True)


def test_metadata_and_tensors_are_those_of_the_gguf_package(model: Path) -> None:
    from gguf import GGUFReader

    ours, theirs = read_gguf(model, "tiny.gguf"), GGUFReader(model)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float):
            assert struct.pack("<f", value) == struct.pack("<f", ours.metadata[key])
        else:
            assert ours.metadata[key] == value
    assert ours.data_offset == theirs.data_offset
    assert [(t.name, t.type, t.offset) for t in ours.tensors] == [
        (t.name, int(t.tensor_type), int(t.data_offset)) for t in theirs.tensors
    ]


def test_floats_are_read_as_people_wrote_them() -> None:
    assert shortest_float32(struct.unpack("<f", struct.pack("<f", 1e-5))[0]) == 1e-5
    assert shortest_float32(struct.unpack("<f", struct.pack("<f", 0.1))[0]) == 0.1
    third = struct.unpack("<f", struct.pack("<f", 1 / 3))[0]
    assert struct.pack("<f", shortest_float32(third)) == struct.pack("<f", third)


def test_the_hash_covers_metadata_and_not_the_weights(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    before = head_sha256(read_gguf(model, "m"))
    assert head_sha256(read_gguf(model, "m", arrays=False)) == before
    changed = tmp_path / "weights.gguf"
    changed.write_bytes(whole[:-4] + b"\0\0\0\1")
    assert head_sha256(read_gguf(changed, "m")) == before
    renamed = tmp_path / "template.gguf"
    renamed.write_bytes(whole.replace(b"{{ m.role }}", b"{{ m.rule }}"))
    assert head_sha256(read_gguf(renamed, "m")) != before


def test_without_arrays_the_rest_is_the_same(model: Path) -> None:
    whole, short = read_gguf(model, "m"), read_gguf(model, "m", arrays=False)
    kept = {key: value for key, value in whole.metadata.items() if not isinstance(value, list)}
    assert kept == short.metadata != whole.metadata
    assert (short.tensors, short.data_offset) == (whole.tensors, whole.data_offset)


@pytest.mark.parametrize("arrays", [True, False])
def test_a_head_cut_anywhere_is_refused(model: Path, tmp_path: Path, arrays: bool) -> None:
    whole = model.read_bytes()
    head = read_gguf(model, "m").data_offset
    cut = tmp_path / "cut.gguf"
    for length in [*range(64), *range(64, head, 97)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"is cut off or damaged|is no GGUF file") as caught:
            read_gguf(cut, "models/cut.gguf", arrays=arrays)
        assert "models/cut.gguf" in str(caught.value)
        assert caught.value.problems[0].cure


def test_a_length_beyond_the_file_is_refused_before_memory_is_taken(model: Path, tmp_path: Path) -> None:
    whole = bytearray(model.read_bytes())
    at = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    whole[at : at + 8] = struct.pack("<Q", 1 << 60)
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(whole)
    for arrays in (True, False):
        with pytest.raises(ModelError, match="is cut off or damaged"):
            read_gguf(bad, "m", arrays=arrays)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "is no GGUF file"),
        (b"", "is no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "is GGUF version 0x1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is GGUF version 0x3000000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"\xff" + b"\0" * 40, "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + b"\x63\0\0\0" * 9, "damaged"),
    ],
)
def test_what_is_no_gguf_of_ours_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf(path, "x.gguf")


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_gguf(tmp_path / "none.gguf", "none.gguf")
