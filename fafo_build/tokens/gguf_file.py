"""The head of a GGUF file: its metadata and where its tensors lie. It knows nothing of what they mean.

Read by hand, since it is small and the `gguf` package takes seconds for it; the weights are not touched.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from attrs import frozen

from fafo_build.errors import ModelError, Problem

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_LENGTH = struct.Struct("<Q")
_STRING = 8
_ARRAY = 9
_MAX_DIMS = 8


@frozen
class TensorInfo:
    """Where one tensor lies."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as torch has it."""
    type: int
    """A `gguf.GGMLQuantizationType`."""
    offset: int
    """Of its first byte, from the beginning of the file."""


@frozen
class GgufFile:
    """What the head of a GGUF file says."""

    path: Path
    metadata: Mapping[str, Any]
    """Key to int, float, bool, str, or a list of one of these."""
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    """Bytes before the first weight."""
    size: int
    """Bytes of the whole file."""


class _Reader:
    """Takes values off a file, and never more than the file holds."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def bytes(self, count: int) -> bytes:
        if count > self._left:
            raise EOFError
        self._left -= count
        return self._file.read(count)

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def string(self) -> str:
        return self.bytes(self.scalar("<Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = struct.unpack("<IQ", self.bytes(12))
            if item == _STRING:
                return [self.string() for _ in range(self._checked(count, 8))]
            form = _SCALARS[item]
            width = struct.calcsize(form)
            raw = self.bytes(self._checked(count, width) * width)
            return list(struct.unpack(f"<{count}{form[1]}", raw))
        if kind == 6:
            return shortest_float32(self.scalar("<f"))
        return self.scalar(_SCALARS[kind])

    def skip_array(self) -> None:
        """Pass over an array without making a list of it."""
        item, count = struct.unpack("<IQ", self.bytes(12))
        if item != _STRING:
            width = struct.calcsize(_SCALARS[item])
            self.bytes(self._checked(count, width) * width)
            return
        read, left = self._file.read, self._left
        for _ in range(self._checked(count, 8)):
            (length,) = _LENGTH.unpack(read(8))
            left -= 8 + length
            if left < 0:
                raise EOFError
            read(length)
        self._left = left

    def _checked(self, count: int, width: int) -> int:
        if count * width > self._left:
            raise EOFError
        return count

    def tensor(self) -> TensorInfo:
        """Read one tensor's entry; its offset is still relative to the data."""
        name = self.string()
        dims = self.scalar("<I")
        if dims > _MAX_DIMS:
            raise EOFError
        shape = struct.unpack(f"<{dims}Q", self.bytes(8 * dims))
        kind, offset = struct.unpack("<IQ", self.bytes(12))
        return TensorInfo(name, tuple(reversed(shape)), kind, offset)


def shortest_float32(value: float) -> float:
    """Return the shortest decimal that is the same 32-bit float: 1e-05 for 9.999999747378752e-06."""
    packed = struct.pack("<f", value)
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == packed:
            return short
    return value


def read_gguf(path: Path, shown: str, *, arrays: bool = True) -> GgufFile:
    """Read the head of the file at `path`, which messages call `shown`.

    Without `arrays` these are left out of the metadata: a vocabulary takes most of the time.

    Raises `ModelError` when it isn't a little-endian GGUF of version 2 or 3, or is cut off in its head.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(_Reader(file, size), path, size, shown, arrays)
    except OSError as error:
        raise _error(
            shown, f"can't be read: {error.strerror}", "check the file and its permissions"
        ) from error
    except (EOFError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise _error(shown, "is cut off or damaged", "download it again") from error


def _read(reader: _Reader, path: Path, size: int, shown: str, arrays: bool) -> GgufFile:
    if size < 24 or reader.bytes(4) != b"GGUF":
        raise _error(shown, "is no GGUF file", "name a .gguf file, a model folder or a hub id")
    version, tensors, keys = struct.unpack("<IQQ", reader.bytes(20))
    if version not in (2, 3):
        raise _error(
            shown,
            f"is GGUF version {version:#x}; fafo reads 2 and 3, little-endian",
            "convert the model again",
        )
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.string()
        kind = reader.scalar("<I")
        if kind == _ARRAY and not arrays:
            reader.skip_array()
        else:
            metadata[key] = reader.value(kind)
    infos = [reader.tensor() for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    head = size - reader._left
    data_offset = -(-head // alignment) * alignment
    if data_offset > size:
        raise EOFError
    placed = tuple(TensorInfo(info.name, info.shape, info.type, data_offset + info.offset) for info in infos)
    return GgufFile(path, metadata, placed, data_offset, size)


def head_sha256(gguf: GgufFile) -> str:
    """Return the sha256, in hex digits, of all bytes before the weights: metadata and list of tensors."""
    with gguf.path.open("rb") as file:
        return hashlib.sha256(file.read(gguf.data_offset)).hexdigest()


def _error(shown: str, what: str, cure: str) -> ModelError:
    return ModelError(Problem(f"the model file {shown} {what}", field="model.path", cure=cure))
