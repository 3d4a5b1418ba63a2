"""Numba rows of the operators between matrix products: norms, the gated activation, rotation and cache writes.

Every row's arithmetic depends on that row alone: it is the same for any number of rows and threads.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels.cpu.addresses import pointer
from pagemill_kernels.cpu.jit import carray, float32, inner, kernel, prange
from pagemill_kernels.cpu.vector import load, store, vadd, vdiv, vfma, vload, vmul, vsplat, vstore, vsub, vsum
from pagemill_kernels.cpu.vector_exp import exp1, vexp

LANES = 16
F32 = np.float32(0)
ZERO = np.float32(0)
ONE = np.float32(1)


@inner
def _norm_scale(x, size, eps, item, tag):
    """1 / sqrt(mean(x^2) + eps)."""
    full = size // LANES * LANES
    lanes = vsplat(ZERO)
    for i in range(0, full, LANES):
        value = vload(x + i * item, tag)
        lanes = vfma(value, value, lanes)
    total = vsum(lanes)
    for i in range(full, size):
        value = load(x + i * item, tag)
        total += value * value
    return ONE / np.sqrt(total / float32(size) + eps)


@inner
def _norm_row(x, weight, out, size, eps, item, weight_item, tag, weight_tag):
    scale = _norm_scale(x, size, eps, item, tag)
    full = size // LANES * LANES
    for i in range(0, full, LANES):
        value = vmul(vload(x + i * item, tag), vsplat(scale))
        vstore(out + i * item, vmul(value, vload(weight + i * weight_item, weight_tag)), tag)
    for i in range(full, size):
        value = load(x + i * item, tag) * scale
        store(out + i * item, value * load(weight + i * weight_item, weight_tag), tag)


@inner
def _add_row(x, residual, total, size, item, tag):
    full = size // LANES * LANES
    for i in range(0, full, LANES):
        vstore(total + i * item, vadd(vload(x + i * item, tag), vload(residual + i * item, tag)), tag)
    for i in range(full, size):
        store(total + i * item, load(x + i * item, tag) + load(residual + i * item, tag), tag)


@kernel
def norm_rows(x, residual, weight, out, total, rows, size, eps, item, weight_item, parallel, tag, weight_tag):
    """Norm of each row of x, or where `residual` is an address, of x + residual, which goes to `total`."""
    row_bytes = size * item
    if parallel:
        for row in prange(rows):
            at = row * row_bytes
            source = x + at
            if residual != 0:
                _add_row(source, residual + at, total + at, size, item, tag)
                source = total + at
            _norm_row(source, weight, out + at, size, eps, item, weight_item, tag, weight_tag)
    else:
        for row in range(rows):
            at = row * row_bytes
            source = x + at
            if residual != 0:
                _add_row(source, residual + at, total + at, size, item, tag)
                source = total + at
            _norm_row(source, weight, out + at, size, eps, item, weight_item, tag, weight_tag)


@inner
def _silu_row(gate, up, out, size, item, tag):
    full = size // LANES * LANES
    zero = vsplat(ZERO)
    one = vsplat(ONE)
    for i in range(0, full, LANES):
        value = vload(gate + i * item, tag)
        value = vdiv(value, vadd(one, vexp(vsub(zero, value))))
        vstore(out + i * item, vmul(value, vload(up + i * item, tag)), tag)
    for i in range(full, size):
        scalar = load(gate + i * item, tag)
        scalar = scalar / (ONE + exp1(-scalar))
        store(out + i * item, scalar * load(up + i * item, tag), tag)


@kernel
def silu_rows(gate_up, out, rows, size, item, parallel, tag):
    """silu(first half) * second half of each row of 2 * size."""
    if parallel:
        for row in prange(rows):
            gate = gate_up + 2 * row * size * item
            _silu_row(gate, gate + size * item, out + row * size * item, size, item, tag)
    else:
        for row in range(rows):
            gate = gate_up + 2 * row * size * item
            _silu_row(gate, gate + size * item, out + row * size * item, size, item, tag)


@inner
def _rotate(x, weight, eps, cos, sin, out, dim, item, weight_item, tag, weight_tag):
    """Rotates one head into float32 scratch; with a weight address, after an RMS norm."""
    half = dim // 2
    scale = _norm_scale(x, dim, eps, item, tag) if weight != 0 else ONE
    full = half // LANES * LANES
    for i in range(0, full, LANES):
        first = vload(x + i * item, tag)
        second = vload(x + (half + i) * item, tag)
        if weight != 0:
            first = vmul(vmul(first, vsplat(scale)), vload(weight + i * weight_item, weight_tag))
            second = vmul(vmul(second, vsplat(scale)), vload(weight + (half + i) * weight_item, weight_tag))
        c = vload(cos + i * 4, F32)
        s = vload(sin + i * 4, F32)
        vstore(out + i * 4, vsub(vmul(first, c), vmul(second, s)), F32)
        vstore(out + (half + i) * 4, vadd(vmul(second, c), vmul(first, s)), F32)
    for i in range(full, half):
        low = load(x + i * item, tag)
        high = load(x + (half + i) * item, tag)
        if weight != 0:
            low = low * scale * load(weight + i * weight_item, weight_tag)
            high = high * scale * load(weight + (half + i) * weight_item, weight_tag)
        turn = load(cos + i * 4, F32)
        lift = load(sin + i * 4, F32)
        store(out + i * 4, low * turn - high * lift, F32)
        store(out + (half + i) * 4, high * turn + low * lift, F32)


@inner
def _rope_row(
    q, k, v, out, cos, sin, slot, keys, values, q_norm, k_norm, eps, scratch, heads, kv_heads, dim, slots, block_size,
    padded_dim, item, cache_item, norm_item, tag, cache_tag, norm_tag,
):  # fmt: skip
    at = scratch.ctypes.data
    for head in range(heads):
        start = head * dim * item
        _rotate(q + start, q_norm, eps, cos, sin, at, dim, item, norm_item, tag, norm_tag)
        for d in range(dim):
            store(out + start + d * item, scratch[d], tag)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot - block * block_size
    for head in range(kv_heads):
        start = head * dim * item
        _rotate(k + start, k_norm, eps, cos, sin, at, dim, item, norm_item, tag, norm_tag)
        key = keys + ((block * kv_heads + head) * dim * slots + offset) * cache_item
        value = values + ((block * kv_heads + head) * block_size + offset) * padded_dim * cache_item
        for d in range(dim):
            store(key + d * slots * cache_item, scratch[d], cache_tag)
            store(value + d * cache_item, load(v + start + d * item, tag), cache_tag)


@kernel
def rope_rows(
    q, k, v, out, rows, q_row, k_row, v_row, cos, sin, positions_at, slots_at, keys, values, q_norm, k_norm, eps, heads,
    kv_heads, dim, slots, block_size, padded_dim, blocks, angles, item, cache_item, norm_item, parallel, tag, cache_tag,
    norm_tag,
):  # fmt: skip
    """Rotates q into out, and k into the cache beside v. *_row: bytes from one row to the next.

    False, and nothing is written, where a position has none of the `angles` or a slot none of the `blocks`.
    """
    positions = carray(pointer(positions_at), (rows,), np.int64)
    where = carray(pointer(slots_at), (rows,), np.int64)
    for row in range(rows):
        if positions[row] < 0 or positions[row] >= angles or where[row] >= blocks * block_size:
            return False
    out_row = heads * dim * item
    angle_row = dim // 2 * 4
    if parallel:
        for row in prange(rows):
            scratch = np.empty(dim, np.float32)
            angle = positions[row] * angle_row
            _rope_row(
                q + row * q_row, k + row * k_row, v + row * v_row, out + row * out_row, cos + angle, sin + angle,
                where[row], keys, values, q_norm, k_norm, eps, scratch, heads, kv_heads, dim, slots, block_size,
                padded_dim, item, cache_item, norm_item, tag, cache_tag, norm_tag,
            )  # fmt: skip
    else:
        space = np.empty(dim, np.float32)
        for row in range(rows):
            angle = positions[row] * angle_row
            _rope_row(
                q + row * q_row, k + row * k_row, v + row * v_row, out + row * out_row, cos + angle, sin + angle,
                where[row], keys, values, q_norm, k_norm, eps, space, heads, kv_heads, dim, slots, block_size,
                padded_dim, item, cache_item, norm_item, tag, cache_tag, norm_tag,
            )  # fmt: skip
    return True
