"""The weights of a GGUF file as bf16 safetensors, one tensor at a time. It needs no torch.

What is undone here: the quantisation, and the order of rows in which llama.cpp keeps the query and key
matrices for its own way of rotating positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fafo_build.errors import ModelError, Problem
from fafo_build.tokens.gguf_config import tensor_names
from fafo_build.tokens.gguf_file import GgufFile, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

Progress = Callable[[int, int], None]
"""Called with the bytes written so far and the bytes in all."""


def tensors(gguf: GgufFile, config: Mapping[str, Any], shown: str) -> Iterator[tuple[str, Floats]]:
    """Yield every tensor under its name in transformers, dequantised to 32-bit floats, in the file's order.

    Raises `ModelError` for a quantisation that `gguf` doesn't know, and for a file that is cut off.
    """
    names = tensor_names(config)
    for info in gguf.tensors:
        yield names[info.name][0], _unpermuted(_dequantised(gguf, info, shown), info.name, config)


def write_safetensors(
    path: Path, gguf: GgufFile, config: Mapping[str, Any], shown: str, progress: Progress
) -> None:
    """Write all tensors to `path` as bf16 and sync it; raises `OSError` when the disk refuses."""
    names = tensor_names(config)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for info in gguf.tensors:
        name, shape = names[info.name]
        size = 2 * _count(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [total, total + size]}
        total += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in tensors(gguf, config, shown):
            done += file.write(_bfloat16(values).tobytes())
            progress(done, total)
        file.flush()
        os.fsync(file.fileno())


def _dequantised(gguf: GgufFile, info: TensorInfo, shown: str) -> Floats:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    cure = "use a folder in the Hugging Face format, or another quantisation of the model"
    try:
        kind = GGMLQuantizationType(info.type)
        block, width = GGML_QUANT_SIZES[kind]
        rows, row = info.shape[:-1], info.shape[-1] // block * width
        count = _count(rows) * row
        if info.offset + count > gguf.size:
            raise _error(f"the model file {shown} is cut off", "download it again")
        raw = np.fromfile(gguf.path, np.uint8, count, offset=info.offset).reshape(*rows, row)
        values: Floats = dequantize(raw, kind).astype(np.float32, copy=False)
    except (ValueError, KeyError, NotImplementedError) as error:
        message = f"the model file {shown} keeps {info.name} in a form ({info.type}) that `gguf` can't read"
        raise _error(message, cure) from error
    return values.reshape(info.shape)


def _unpermuted(values: Floats, name: str, config: Mapping[str, Any]) -> Floats:
    """Undo llama.cpp's order of rows: it pairs neighbours to rotate them, transformers pairs halves."""
    if name.endswith(".attn_q.weight"):
        heads = config["num_attention_heads"]
    elif name.endswith(".attn_k.weight"):
        heads = config["num_key_value_heads"]
    else:
        return values
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the bits of the nearest bf16 numbers, ties to even, as torch rounds."""
    import numpy as np

    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _error(message: str, cure: str) -> ModelError:
    return ModelError(Problem(message, field="model.path", cure=cure))
