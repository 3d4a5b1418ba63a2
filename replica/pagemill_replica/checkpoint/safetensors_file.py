"""The index of a safetensors file.

A u64 length, that many bytes of JSON (name to dtype, shape, [begin, end) in what follows), then the data.
Source: the format's specification, https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.files import LFS_START, refuse_pointer
from pagemill_replica.checkpoint.tensors import ENCODINGS, TensorEntry

MAX_HEADER_BYTES = 100 * 1024 * 1024
"""The format's own limit."""
MAX_DIMENSIONS = 8
MAX_SIZE = 1 << 63
"""Of a dimension or an offset: larger ones are damage, and their product could keep a processor busy for hours."""


def read_index(file: Path) -> dict[str, TensorEntry]:
    """Every tensor of the file by name, checked to lie inside it; its data is not read."""
    header, data_start, size = _read_header(file)
    entries = {}
    for name, about in header.items():
        if name != "__metadata__":
            entries[name] = _entry(file, name, about, data_start, size)
    _check_tiling(file, entries.values(), data_start, size)
    return entries


def _read_header(file: Path) -> tuple[dict[str, Any], int, int]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(len(LFS_START))
            refuse_pointer(file, start)
            length = int.from_bytes(start[:8], "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    file,
                    f"is not a safetensors file, or is truncated: it has {size} bytes and calls for a header of"
                    f" {length}; {AGAIN}",
                )
            stream.seek(8)
            header = json.loads(stream.read(length), object_pairs_hook=_unique)
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(file, f"its safetensors header is corrupt: {error}; {AGAIN}") from error
    except RecursionError as error:
        raise CheckpointError(file, f"its safetensors header is corrupt: nested too deeply; {AGAIN}") from error
    if not isinstance(header, dict):
        raise CheckpointError(file, f"its safetensors header is not an object; {AGAIN}")
    return header, 8 + length, size


def _entry(file: Path, name: str, about: object, data_start: int, size: int) -> TensorEntry:
    match about:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if _are_sizes([*shape, begin, end]):
            pass
        case _:
            raise CheckpointError(file, f"its safetensors header is corrupt at tensor {name!r}; {AGAIN}")
    if dtype not in ("F32", "F16", "BF16"):
        raise CheckpointError(file, f"tensor {name} has type {dtype}; supported are F32, F16, BF16")
    encoding = ENCODINGS[dtype]
    if begin > end or end - begin != math.prod(shape) * encoding.block_bytes:
        raise CheckpointError(file, f"tensor {name} of shape {shape} cannot lie in bytes {begin} to {end}; {AGAIN}")
    if data_start + end > size:
        end += data_start
        raise CheckpointError(file, f"is truncated: tensor {name} ends at byte {end}, the file at {size}; {AGAIN}")
    return TensorEntry(name, encoding, tuple(shape) or (1,), file, data_start + begin)


def _are_sizes(values: list[object]) -> bool:
    """Whether a shape and its two offsets are whole numbers of a size that a file can have."""
    return len(values) <= MAX_DIMENSIONS + 2 and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < MAX_SIZE for n in values
    )


def _check_tiling(file: Path, entries: Collection[TensorEntry], data_start: int, size: int) -> None:
    """The format wants every byte of the data in exactly one tensor; anything else is damage or a forged file."""
    at = data_start
    for entry in sorted(entries, key=lambda e: (e.offset, e.nbytes)):
        if entry.offset != at:
            what = "overlaps the one before it" if entry.offset < at else f"leaves a gap after byte {at}"
            raise CheckpointError(file, f"is corrupt: tensor {entry.name} at byte {entry.offset} {what}; {AGAIN}")
        at += entry.nbytes
    if at != size:
        raise CheckpointError(file, f"is corrupt: its tensors end at byte {at}, the file at {size}; {AGAIN}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two tensors of one name a reader would silently take the last."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found
