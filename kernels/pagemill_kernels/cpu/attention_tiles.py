"""The inner loops of paged attention: one tile of queries against one tile of keys and values.

A *column* is up to sixteen consecutive positions of one block; a key-value tile is four columns, counted from position
0, so that the arithmetic of a query depends on its position alone and never on how a sequence was cut into steps.
Rows are (query, head of the group) pairs, in blocks of four, so that eight accumulators stay in registers.
The running softmax (largest score, sum, weighted values) is that of Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018), as used by FlashAttention.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from collections import namedtuple

import numpy as np

from pagemill_kernels.cpu.jit import float32, inner, int64
from pagemill_kernels.cpu.vector import (
    load,
    store,
    vadd,
    vdiv,
    vfma,
    vkeep,
    vload,
    vmax,
    vmul,
    vpeak,
    vsplat,
    vstore,
    vsub,
    vsum,
)
from pagemill_kernels.cpu.vector_exp import exp1, vexp

COLUMN = 16
"""Positions in a column: the lanes of a vector."""
TILE_COLUMNS = 4
TILE = COLUMN * TILE_COLUMNS
SEGMENT_COLUMNS = 64
"""Columns between two resets of the running softmax: the unit that threads share when sequences are few."""
ROW_BLOCK = 4

F32 = np.float32(0)
"""Tag of float32 storage."""
NEGATIVE = np.float32(-np.inf)
ZERO = np.float32(0)

Geometry = namedtuple(
    "Geometry",
    "group dim padded_dim block_size columns_per_block key_block key_head key_step value_block value_head value_step"
    " value_item query_item window softcap",
)
"""Sizes that every tile shares, strides in bytes: *_block from one block of a layer to the next, *_head from one kv
head to the next, key_step from one dimension to the next, value_step from one slot to the next."""


@inner
def column_start(geometry, column):
    """(position of a column's first lane, lanes it has, its block's place in the table, its lane offset in there)."""
    place = column // geometry.columns_per_block
    offset = (column - place * geometry.columns_per_block) * COLUMN
    return place * geometry.block_size + offset, min(COLUMN, geometry.block_size - offset), place, offset


@inner
def scores(q, rows, geometry, keys, columns, out, tag):
    """out[row, column, lane] = q[row] . key, for q float32 [rows, padded dim] and keys [columns] of addresses."""
    q_row = int64(geometry.padded_dim * 4)
    out_row = int64(TILE * 4)
    step = geometry.key_step
    for first in range(0, rows, ROW_BLOCK):
        q0 = q + first * q_row
        for column in range(columns):
            key = keys[column]
            q1 = q0
            a0 = vsplat(ZERO)
            a1 = vsplat(ZERO)
            a2 = vsplat(ZERO)
            a3 = vsplat(ZERO)
            for _ in range(geometry.dim):
                lanes = vload(key, tag)
                a0 = vfma(vsplat(load(q1, F32)), lanes, a0)
                a1 = vfma(vsplat(load(q1 + q_row, F32)), lanes, a1)
                a2 = vfma(vsplat(load(q1 + 2 * q_row, F32)), lanes, a2)
                a3 = vfma(vsplat(load(q1 + 3 * q_row, F32)), lanes, a3)
                key += step
                q1 += 4
            to = out + first * out_row + column * COLUMN * 4
            vstore(to, a0, F32)
            vstore(to + out_row, a1, F32)
            vstore(to + 2 * out_row, a2, F32)
            vstore(to + 3 * out_row, a3, F32)


@inner
def _capped(value, softcap):
    """Gives softcap * tanh(value / softcap), by tanh(x) = 1 - 2 / (exp(2 x) + 1)."""
    twice = vmul(value, vsplat(float32(2.0) / softcap))
    one = vsplat(float32(1.0))
    tanh = vsub(one, vdiv(vsplat(float32(2.0)), vadd(vexp(twice), one)))
    return vmul(tanh, vsplat(softcap))


@inner
def weights(tile, row, position, geometry, first_column, columns, peaks, sums, decay):
    """Turns one row's scores into exp(score - largest), in place; updates its largest score and its sum.

    decay[row] becomes the factor for what was accumulated before. What the row may not see gets weight 0.
    """
    base = tile + row * TILE * 4
    lowest = position - geometry.window + 1 if geometry.window > 0 else int64(0)
    top = vsplat(NEGATIVE)
    for column in range(columns):
        at = base + column * COLUMN * 4
        start, lanes, _, _ = column_start(geometry, first_column + column)
        value = vload(at, F32)
        if geometry.softcap > ZERO:
            value = _capped(value, geometry.softcap)
        value = vkeep(value, lowest - start, min(lanes, position + 1 - start), NEGATIVE)
        vstore(at, value, F32)
        top = vmax(value, top)
    peak = max(peaks[row], vpeak(top))
    # A row that has seen nothing yet has no largest score: any finite one gives it weights of 0.
    shift = peak if peak > NEGATIVE else ZERO
    decay[row] = exp1(peaks[row] - shift)
    peaks[row] = peak
    total = vmul(vload(sums + row * COLUMN * 4, F32), vsplat(decay[row]))
    for column in range(columns):
        at = base + column * COLUMN * 4
        weight = vexp(vsub(vload(at, F32), vsplat(shift)))
        vstore(at, weight, F32)
        total = vadd(total, weight)
    vstore(sums + row * COLUMN * 4, total, F32)


@inner
def weighted_values(tile, rows, geometry, values, skipped, used, columns, decay, acc, tag):
    """acc[row] = acc[row] * decay[row] + the sum of weight * value over each column's slots [skipped, used).

    No other slot is read.
    """
    tile_row = int64(TILE * 4)
    acc_row = int64(geometry.padded_dim * 4)
    step = geometry.value_step
    item = geometry.value_item
    for first in range(0, rows, ROW_BLOCK):
        for chunk in range(0, geometry.padded_dim, COLUMN):
            to = acc + first * acc_row + chunk * 4
            a0 = vmul(vload(to, F32), vsplat(decay[first]))
            a1 = vmul(vload(to + acc_row, F32), vsplat(decay[first + 1]))
            a2 = vmul(vload(to + 2 * acc_row, F32), vsplat(decay[first + 2]))
            a3 = vmul(vload(to + 3 * acc_row, F32), vsplat(decay[first + 3]))
            for column in range(columns):
                value = values[column] + chunk * item + skipped[column] * step
                weight = tile + first * tile_row + (column * COLUMN + skipped[column]) * 4
                for _ in range(skipped[column], used[column]):
                    lanes = vload(value, tag)
                    a0 = vfma(vsplat(load(weight, F32)), lanes, a0)
                    a1 = vfma(vsplat(load(weight + tile_row, F32)), lanes, a1)
                    a2 = vfma(vsplat(load(weight + 2 * tile_row, F32)), lanes, a2)
                    a3 = vfma(vsplat(load(weight + 3 * tile_row, F32)), lanes, a3)
                    value += step
                    weight += 4
            vstore(to, a0, F32)
            vstore(to + acc_row, a1, F32)
            vstore(to + 2 * acc_row, a2, F32)
            vstore(to + 3 * acc_row, a3, F32)


@inner
def merge(rows, geometry, peaks, sums, acc, part_peaks, part_sums, part_acc):
    """Adds a later segment's softmax state to the running one."""
    for row in range(rows):
        peak = max(peaks[row], part_peaks[row])
        shift = peak if peak > NEGATIVE else ZERO
        old = vsplat(exp1(peaks[row] - shift))
        new = vsplat(exp1(part_peaks[row] - shift))
        peaks[row] = peak
        at = row * COLUMN * 4
        vstore(sums + at, vfma(vload(part_sums + at, F32), new, vmul(vload(sums + at, F32), old)), F32)
        for chunk in range(0, geometry.padded_dim, COLUMN):
            at = (row * geometry.padded_dim + chunk) * 4
            vstore(acc + at, vfma(vload(part_acc + at, F32), new, vmul(vload(acc + at, F32), old)), F32)


@inner
def finish_row(acc, sums, geometry, out, tag):
    """Writes acc / sum as one head's output; a row that saw nothing gives 0."""
    total = vsum(vload(sums, F32))
    scale = float32(1.0) / total if total > ZERO else ZERO
    full = geometry.dim // COLUMN * COLUMN
    item = geometry.query_item
    for chunk in range(0, full, COLUMN):
        vstore(out + chunk * item, vmul(vload(acc + chunk * 4, F32), vsplat(scale)), tag)
    for d in range(full, geometry.dim):
        store(out + d * item, load(acc + d * 4, F32) * scale, tag)
