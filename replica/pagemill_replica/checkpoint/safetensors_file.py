"""The index of a safetensors file.

A u64 length, that many bytes of JSON (name to dtype, shape, [begin, end) in what follows), then the data.
Source: the format's specification, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.tensors import ENCODINGS, TensorEntry

MAX_HEADER_BYTES = 100 * 1024 * 1024
"""The format's own limit."""


def read_index(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of the file by name, checked to lie inside it; its data is not read."""
    header, data_start, size = _read_header(file)
    entries = {}
    for name, about in header.items():
        if name != "__metadata__":
            entries[name] = _entry(file, name, about, data_start, size)
    return entries


def _read_header(file: Path) -> tuple[dict[str, Any], int, int]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    file, f"is not a safetensors file, or is truncated: {size} bytes, header {length}"
                )
            header = json.loads(stream.read(length))
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(file, f"its safetensors header is corrupt: {error}") from error
    except RecursionError as error:
        raise CheckpointError(file, "its safetensors header is corrupt: nested too deeply") from error
    if not isinstance(header, dict):
        raise CheckpointError(file, "its safetensors header is not an object")
    return header, 8 + length, size


def _entry(file: Path, name: str, about: object, data_start: int, size: int) -> TensorEntry:
    match about:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if _are_sizes(shape):
            pass
        case _:
            raise CheckpointError(file, f"its safetensors header is corrupt at tensor {name!r}")
    if dtype not in ("F32", "F16", "BF16"):
        raise CheckpointError(file, f"tensor {name} has type {dtype}; supported are F32, F16, BF16")
    encoding = ENCODINGS[dtype]
    if not 0 <= begin <= end or end - begin != math.prod(shape) * encoding.block_bytes:
        raise CheckpointError(file, f"tensor {name} of shape {shape} cannot lie in bytes {begin} to {end}")
    if data_start + end > size:
        raise CheckpointError(file, f"is truncated: tensor {name} ends at byte {data_start + end}, the file at {size}")
    return TensorEntry(name, encoding, tuple(shape) or (1,), file, data_start + begin)


def _are_sizes(shape: list[object]) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
