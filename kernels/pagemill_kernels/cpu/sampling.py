"""The sampling operator on CPU tensors: shapes and types are checked here, the rows run in numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagemill_kernels.cpu.sampling_rows import sample_rows
from pagemill_kernels.cpu.storage import TAGS, threads

_F, _I, _L = torch.float32, torch.int32, torch.int64
_TYPES = (_F, _I, _F, _F, _F, _F, _F, _L, _L, _I, _I, _I, _F, _I, _I, _I)
"""Of the arguments after the logits, in order."""
_LISTS = {10: 1, 13: 1}
"""Offsets have one entry more than there are rows."""
_RAGGED = frozenset({11, 12, 14, 15})


def sample(logits: Tensor, *fields: Tensor) -> Tensor:
    """The declared operator; fields in the order of `types.SamplingBatch`."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    for index, (field, dtype) in enumerate(zip(fields, _TYPES, strict=True)):
        wanted = rows + _LISTS.get(index, 0)
        if field.dtype != dtype or not field.is_contiguous() or (index not in _RAGGED and field.shape[0] != wanted):
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
    sample_rows(arguments, threads(), TAGS[logits.dtype])
    return out
