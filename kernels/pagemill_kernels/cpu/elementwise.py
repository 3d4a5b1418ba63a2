"""The operators between matrix products, on CPU tensors: shapes are checked here, the rows run in numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagemill_kernels.cpu.elementwise_rows import norm_rows, rope_rows, silu_rows
from pagemill_kernels.cpu.storage import tag, threads

_PARALLEL_FROM = 32_768
"""Elements from which starting threads pays."""


def _parallel(elements: int) -> bool:
    return elements >= _PARALLEL_FROM and threads() > 1


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if x.dim() != 2 or weight.shape != x.shape[1:] or (residual is not None and residual.shape != x.shape):
        raise ValueError(f"norm of {tuple(x.shape)} with a weight of {tuple(weight.shape)}")
    rows, size = x.shape
    x, weight = x.contiguous(), weight.contiguous()
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
        tag("norm", x),
        tag("norm weight", weight),
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
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate and up are halves of each row; a shape of {tuple(gate_up.shape)} has none")
    gate_up = gate_up.contiguous()
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype)
    silu_rows(
        gate_up.data_ptr(),
        out.data_ptr(),
        rows,
        size,
        gate_up.itemsize,
        _parallel(rows * size),
        tag("silu_mul", gate_up),
    )
    return out


def _rows_of_heads(x: Tensor) -> Tensor:
    """The tensor itself where its heads are contiguous within a row, a copy elsewhere."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _check_heads(q: Tensor, k: Tensor, v: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    rows, _, dim = q.shape
    shape = k.shape
    if shape[0] != rows or shape[2] != dim or dim % 2 or v.shape != shape or key_cache.shape[1:3] != shape[1:]:
        raise ValueError(f"q {tuple(q.shape)}, k {tuple(shape)}, v {tuple(v.shape)} do not fit the cache")
    if not q.dtype == k.dtype == v.dtype or value_cache.dtype != key_cache.dtype:
        raise TypeError(f"q {q.dtype}, k {k.dtype} and v {v.dtype} are of one type, and so are both caches")


def _check_angles(rows: int, dim: int, cos: Tensor, sin: Tensor, positions: Tensor, slots: Tensor) -> None:
    if not positions.dtype == slots.dtype == torch.int64 or not cos.dtype == sin.dtype == torch.float32:
        raise TypeError("positions and slots are int64; cos and sin float32")
    if not (positions.is_contiguous() and slots.is_contiguous() and cos.is_contiguous() and sin.is_contiguous()):
        raise TypeError("positions, slots, cos and sin are contiguous")
    if not positions.shape == slots.shape == (rows,) or cos.shape[1:] != (dim // 2,) or sin.shape != cos.shape:
        raise ValueError(
            f"positions {tuple(positions.shape)}, slots {tuple(slots.shape)}, cos {tuple(cos.shape)} and"
            f" sin {tuple(sin.shape)} do not fit {rows} rows of heads of {dim}"
        )


def _check_head_norms(dim: int, q_norm: Tensor | None, k_norm: Tensor | None) -> None:
    for norm in (q_norm, k_norm):
        if norm is not None and (norm.shape != (dim,) or not norm.is_contiguous()):
            raise ValueError(f"a norm of heads of {dim} is a contiguous vector, not {tuple(norm.shape)}")
    if q_norm is not None and k_norm is not None and q_norm.dtype != k_norm.dtype:
        raise TypeError(f"q_norm {q_norm.dtype} and k_norm {k_norm.dtype} are of one type")


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
    """The declared operator. ValueError, before anything is written, for positions and slots that do not exist."""
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    _check_heads(q, k, v, key_cache, value_cache)
    _check_angles(rows, dim, cos, sin, positions, slots)
    _check_head_norms(dim, q_norm, k_norm)
    q, k, v = _rows_of_heads(q), _rows_of_heads(k), _rows_of_heads(v)
    norm = q_norm if q_norm is not None else k_norm
    out = torch.empty((rows, heads, dim), dtype=q.dtype)
    inside = rope_rows(
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
        key_cache.shape[0],
        cos.shape[0],
        q.itemsize,
        key_cache.itemsize,
        q.itemsize if norm is None else norm.itemsize,
        _parallel(rows * (heads + kv_heads) * dim),
        tag("queries", q),
        tag("cache", key_cache),
        tag("norm weight", q if norm is None else norm),
    )
    if not inside:
        raise ValueError(f"a position is outside of [0, {cos.shape[0]}) or a slot past the {key_cache.shape[0]} blocks")
    return out
