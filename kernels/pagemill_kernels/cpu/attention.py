"""The paged attention operator on CPU tensors: shapes are checked here, `attention_kernel` does the work."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagemill_kernels.cpu.attention_kernel import attend_batch
from pagemill_kernels.cpu.storage import tag, threads


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int,
    softcap: float,
    deterministic: bool,
) -> Tensor:
    """The declared operator. `deterministic` changes nothing: the order of arithmetic is always fixed by position.

    ValueError, before anything is computed, for a batch that reaches outside of its tensors or of the cache.
    """
    rows, heads, dim = q.shape
    _, kv_heads, key_dim, slots = keys.shape
    block_size, padded_dim = values.shape[2:]
    if key_dim != dim or heads % kv_heads:
        raise ValueError(f"queries of {heads} heads x {dim} do not fit a cache of {kv_heads} heads x {key_dim}")
    if q.stride(2) != 1 or q.stride(1) != dim:
        q = q.contiguous()
    for index in (query_start, context_lens, block_tables):
        if index.dtype != torch.int32 or not index.is_contiguous():
            raise TypeError("query_start, context_lens and block_tables are contiguous int32")
    if query_start.shape != (len(context_lens) + 1,) or block_tables.shape[:-1] != context_lens.shape:
        raise ValueError(
            f"query_start {tuple(query_start.shape)}, context_lens {tuple(context_lens.shape)} and block_tables"
            f" {tuple(block_tables.shape)} are of different numbers of sequences"
        )
    out = torch.empty((rows, heads, dim), dtype=q.dtype)
    arguments = np.array(
        [
            q.data_ptr(),
            out.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            query_start.data_ptr(),
            context_lens.data_ptr(),
            block_tables.data_ptr(),
            rows,
            q.stride(0) * q.itemsize,
            heads,
            dim,
            kv_heads,
            slots,
            padded_dim,
            block_size,
            keys.itemsize,
            q.itemsize,
            context_lens.shape[0],
            block_tables.shape[1],
            window,
            keys.shape[0],
        ],
        dtype=np.int64,
    )
    tags = tag("cache", keys), tag("queries", q)
    wrong = attend_batch(arguments, np.float32(scale), np.float32(softcap), threads(), *tags)
    if wrong >= 0:
        raise ValueError(f"sequence {wrong} of the batch reaches outside of its rows, its block table or the cache")
    return out
