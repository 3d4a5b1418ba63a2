"""Tensors of a checkpoint as torch tensors, one at a time, so that memory peaks at the model plus one projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagemill_replica.checkpoint.dequantise import to_float32
from pagemill_replica.checkpoint.tensors import Bytes, TensorEntry, read_rows

CHUNK_NUMBERS = 256 * 1024
"""Numbers decoded at a time: 1 MiB of float32, which stays in the processor's cache."""

_NATIVE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_tensor(entry: TensorEntry, dtype: torch.dtype) -> Tensor:
    """One tensor in its own shape, on the CPU."""
    return read_stacked([entry], dtype).reshape(entry.shape)


def read_stacked(entries: Sequence[TensorEntry], dtype: torch.dtype) -> Tensor:
    """Tensors of equal width below each other, [sum of rows, width] on the CPU; vectors join end to end."""
    if len(entries[0].shape) == 1:
        stacked = torch.empty(sum(entry.shape[0] for entry in entries), dtype=dtype)
        parts = torch.split_with_sizes(stacked, [entry.shape[0] for entry in entries])
        for entry, part in zip(entries, parts, strict=True):
            _fill(part.unsqueeze(0), entry)
        return stacked
    stacked = torch.empty(sum(entry.rows for entry in entries), entries[0].shape[-1], dtype=dtype)
    parts = torch.split_with_sizes(stacked, [entry.rows for entry in entries])
    for entry, part in zip(entries, parts, strict=True):
        _fill(part, entry)
    return stacked


def _fill(out: Tensor, entry: TensorEntry) -> None:
    """Decodes an entry's rows into `out` [rows, width], some at a time."""
    rows = read_rows(entry)
    step = max(1, CHUNK_NUMBERS // entry.shape[-1])
    for start in range(0, entry.rows, step):
        out[start : start + step].copy_(_decode(rows[start : start + step], entry.encoding.name, entry))


def _decode(rows: Bytes, encoding: str, entry: TensorEntry) -> Tensor:
    native = _NATIVE.get(encoding)
    if native is None:
        return torch.from_numpy(to_float32(entry.encoding, rows))
    # The map of the file is read-only, which torch does not accept: a chunk is copied.
    return torch.from_numpy(rows.copy()).view(native)
