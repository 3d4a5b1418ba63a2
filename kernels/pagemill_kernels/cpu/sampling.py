"""The sampling operator on CPU tensors: shapes and types are checked here, the rows run in numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagemill_kernels.cpu.sampling_rows import WRONG, sample_rows
from pagemill_kernels.cpu.storage import tag, threads

_F, _I, _L = torch.float32, torch.int32, torch.int64
_TYPES = (_F, _I, _F, _F, _F, _F, _F, _L, _L, _I, _I, _I, _F, _I, _I, _I)
"""Of the arguments after the logits, in order."""
_LISTS = {10: 1, 13: 1}
"""Offsets have one entry more than there are rows."""
_RAGGED = {11: 11, 12: 11, 14: 14, 15: 14}
"""Ragged fields, and the field that each is as long as."""


def sample(logits: Tensor, *fields: Tensor) -> Tensor:
    """The declared operator; fields in the order of `types.SamplingBatch`.

    ValueError for ids outside of the vocabulary and offsets outside of their lists.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits have two dimensions, rows and vocabulary, not {logits.dim()}")
    rows, vocab = logits.shape
    logits_tag = tag("logits", logits)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    for index, (field, dtype) in enumerate(zip(fields, _TYPES, strict=True)):
        wanted = fields[_RAGGED[index]].numel() if index in _RAGGED else rows + _LISTS.get(index, 0)
        if field.dtype != dtype or not field.is_contiguous() or field.shape != (wanted,):
            raise TypeError(
                f"argument {index} of sample: {field.dtype} {tuple(field.shape)}, wanted {dtype} [{wanted}]"
            )
    out = torch.empty(rows, dtype=torch.int64)
    arguments = np.array(
        [
            logits.data_ptr(),
            logits.stride(0) * logits.itemsize,
            rows,
            vocab,
            logits.itemsize,
            out.data_ptr(),
            fields[11].shape[0],
            fields[14].shape[0],
            *(field.data_ptr() for field in fields),
        ],
        dtype=np.int64,
    )
    sample_rows(arguments, threads(), logits_tag)
    drawn = out.numpy()
    if rows and drawn.min() == WRONG:
        raise ValueError(f"row {drawn.argmin()} of sample: an id of bias or history is outside of [0, {vocab})")
    return out
