"""The operators between matrix products, on CPU tensors: shapes are checked here, the rows run in numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagemill_kernels.cpu.elementwise_rows import norm_rows, rope_rows, silu_rows
from pagemill_kernels.cpu.storage import TAGS, threads

_PARALLEL_FROM = 32_768
"""Elements from which starting threads pays."""


def _parallel(elements: int) -> bool:
    return elements >= _PARALLEL_FROM and threads() > 1


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    size = x.shape[-1]
    if weight.shape != (size,) or (residual is not None and residual.shape != x.shape):
        raise ValueError(f"norm of {tuple(x.shape)} with a weight of {tuple(weight.shape)}")
    x = x.contiguous()
    rows = x.numel() // size
    out = torch.empty_like(x)
    total = x
    residual_at = 0
    if residual is not None:
        residual = residual.to(x.dtype).contiguous()
        residual_at = residual.data_ptr()
        total = torch.empty_like(x)
    norm_rows(
        x.data_ptr(),
        residual_at,
        weight.data_ptr(),
        out.data_ptr(),
        total.data_ptr(),
        rows,
        size,
        np.float32(eps),
        x.itemsize,
        weight.itemsize,
        _parallel(rows * size),
        TAGS[x.dtype],
        TAGS[weight.dtype],
    )
    return out, total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The declared operator."""
    return _norm(x, None, weight, eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The declared operator."""
    return _norm(x, residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """The declared operator."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate and up are halves of a row; {gate_up.shape[-1]} is odd")
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype)
    rows = gate_up.shape[0]
    silu_rows(
        gate_up.data_ptr(),
        out.data_ptr(),
        rows,
        size,
        gate_up.itemsize,
        _parallel(rows * size),
        TAGS[gate_up.dtype],
    )
    return out


def _rows_of_heads(x: Tensor) -> Tensor:
    """The tensor itself where its heads are contiguous within a row, a copy elsewhere."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """The declared operator."""
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    if v.shape != k.shape or k.shape[0] != rows or key_cache.shape[1:3] != (kv_heads, dim):
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)} do not fit the cache")
    if positions.dtype != torch.int64 or slots.dtype != torch.int64 or cos.dtype != torch.float32:
        raise TypeError("positions and slots are int64; cos and sin float32")
    q, k, v = _rows_of_heads(q), _rows_of_heads(k), _rows_of_heads(v)
    norm = q_norm if q_norm is not None else k_norm
    out = torch.empty((rows, heads, dim), dtype=q.dtype)
    rope_rows(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        rows,
        q.stride(0) * q.itemsize,
        k.stride(0) * q.itemsize,
        v.stride(0) * q.itemsize,
        cos.data_ptr(),
        sin.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        0 if q_norm is None else q_norm.data_ptr(),
        0 if k_norm is None else k_norm.data_ptr(),
        np.float32(eps),
        heads,
        kv_heads,
        dim,
        key_cache.shape[3],
        value_cache.shape[2],
        value_cache.shape[3],
        q.itemsize,
        key_cache.itemsize,
        q.itemsize if norm is None else norm.itemsize,
        _parallel(rows * (heads + kv_heads) * dim),
        TAGS[q.dtype],
        TAGS[key_cache.dtype],
        TAGS[q.dtype if norm is None else norm.dtype],
    )
    return out
