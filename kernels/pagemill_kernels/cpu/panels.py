"""Matrix product with weights in panels of sixteen outputs: [out / 16, in, 16], any storage type, float32 sums.

Each output is one chain of multiply-adds over the inputs in rising order, whatever the number of rows, their place or
the number of threads: a row's bits depend on that row alone. Blocks of up to six rows keep their sums in registers.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels.cpu.addresses import counters, take_next
from pagemill_kernels.cpu.jit import inner, kernel, prange
from pagemill_kernels.cpu.vector import load, store, vadd, vfma, vload, vsplat, vstore

LANES = 16
F32 = np.float32(0)
ZERO = np.float32(0)
ROW_CHUNK = 96
"""Rows whose inputs stay in the cache while a thread's panels pass over them; a multiple of 6 and 4."""
SPARE_ROWS = 3
"""Zero rows after the last, for blocks that reach past it."""
PANELS_TAKEN = 4
"""Panels that a thread takes at a time; one row passes over that many at once, to have enough sums in flight."""
SERIAL_WORK = 400_000
"""Multiply-adds below which starting threads costs more than it saves."""


@inner
def _six_rows(x, row, panel, size, step, sums, tag):
    a0 = vsplat(ZERO)
    a1 = vsplat(ZERO)
    a2 = vsplat(ZERO)
    a3 = vsplat(ZERO)
    a4 = vsplat(ZERO)
    a5 = vsplat(ZERO)
    x3 = x + 3 * row
    for _ in range(size):
        w = vload(panel, tag)
        a0 = vfma(vsplat(load(x, F32)), w, a0)
        a1 = vfma(vsplat(load(x + row, F32)), w, a1)
        a2 = vfma(vsplat(load(x + 2 * row, F32)), w, a2)
        a3 = vfma(vsplat(load(x3, F32)), w, a3)
        a4 = vfma(vsplat(load(x3 + row, F32)), w, a4)
        a5 = vfma(vsplat(load(x3 + 2 * row, F32)), w, a5)
        panel += step
        x += 4
        x3 += 4
    vstore(sums, a0, F32)
    vstore(sums + 64, a1, F32)
    vstore(sums + 128, a2, F32)
    vstore(sums + 192, a3, F32)
    vstore(sums + 256, a4, F32)
    vstore(sums + 320, a5, F32)


@inner
def _four_rows(x, row, panel, size, step, sums, tag):
    a0 = vsplat(ZERO)
    a1 = vsplat(ZERO)
    a2 = vsplat(ZERO)
    a3 = vsplat(ZERO)
    for _ in range(size):
        w = vload(panel, tag)
        a0 = vfma(vsplat(load(x, F32)), w, a0)
        a1 = vfma(vsplat(load(x + row, F32)), w, a1)
        a2 = vfma(vsplat(load(x + 2 * row, F32)), w, a2)
        a3 = vfma(vsplat(load(x + 3 * row, F32)), w, a3)
        panel += step
        x += 4
    vstore(sums, a0, F32)
    vstore(sums + 64, a1, F32)
    vstore(sums + 128, a2, F32)
    vstore(sums + 192, a3, F32)


@inner
def _one_row(x, panel, panel_bytes, size, step, sums, tag):
    """One row against four panels that follow each other."""
    a0 = vsplat(ZERO)
    a1 = vsplat(ZERO)
    a2 = vsplat(ZERO)
    a3 = vsplat(ZERO)
    third = panel + 2 * panel_bytes
    for _ in range(size):
        value = vsplat(load(x, F32))
        a0 = vfma(value, vload(panel, tag), a0)
        a1 = vfma(value, vload(panel + panel_bytes, tag), a1)
        a2 = vfma(value, vload(third, tag), a2)
        a3 = vfma(value, vload(third + panel_bytes, tag), a3)
        panel += step
        third += step
        x += 4
    vstore(sums, a0, F32)
    vstore(sums + 64, a1, F32)
    vstore(sums + 128, a2, F32)
    vstore(sums + 192, a3, F32)


@inner
def _write(sums, bias, first, out, outputs, item, out_tag):
    """Sixteen sums (plus bias where its address is not 0) to outputs from `first` on."""
    to = out + first * item
    if first + LANES <= outputs:
        value = vload(sums, F32)
        if bias != 0:
            value = vadd(value, vload(bias + first * 4, F32))
        vstore(to, value, out_tag)
        return
    for lane in range(outputs - first):
        scalar = load(sums + lane * 4, F32)
        if bias != 0:
            scalar += load(bias + (first + lane) * 4, F32)
        store(to + lane * item, scalar, out_tag)


@inner
def _share(wide, rows, size, weight, panels, bias, out, outputs, item, counter, sums, tag):
    """One thread's share of the panels, for every row of the widened inputs."""
    step = LANES * item
    panel_bytes = size * step
    row_bytes = size * 4
    out_row = outputs * item
    groups = -(-panels // PANELS_TAKEN)
    x = wide.ctypes.data
    at = sums.ctypes.data
    for chunk in range(0, rows, ROW_CHUNK):
        last = min(rows, chunk + ROW_CHUNK)
        index = chunk // ROW_CHUNK
        while True:
            taken = take_next(counter[index:].ctypes.data)
            if taken >= groups:
                break
            first = taken * PANELS_TAKEN
            count = min(PANELS_TAKEN, panels - first)
            if rows == 1 and count == PANELS_TAKEN:
                _one_row(x, weight + first * panel_bytes, panel_bytes, size, step, at, tag)
                for p in range(count):
                    _write(at + p * 64, bias, (first + p) * LANES, out, outputs, item, tag)
                continue
            for p in range(first, first + count):
                panel = weight + p * panel_bytes
                row = chunk
                while row < last:
                    left = last - row
                    block = 6 if left >= 9 or left == 6 or left == 5 else 4
                    # A block past the end reads the spare rows.
                    source = x + row * row_bytes
                    if block == 6:
                        _six_rows(source, row_bytes, panel, size, step, at, tag)
                    else:
                        _four_rows(source, row_bytes, panel, size, step, at, tag)
                    for r in range(min(block, left)):
                        _write(at + r * 64, bias, p * LANES, out + (row + r) * out_row, outputs, item, tag)
                    row += block


@inner
def _widen(x, row_bytes, rows, size, item, wide, tag):
    """Copies rows to float32, and clears the spare rows after them."""
    full = size // LANES * LANES
    at = wide.ctypes.data
    for row in range(rows):
        source = x + row * row_bytes
        to = at + row * size * 4
        for i in range(0, full, LANES):
            vstore(to + i * 4, vload(source + i * item, tag), F32)
        for i in range(full, size):
            store(to + i * 4, load(source + i * item, tag), F32)
    wide[rows:] = ZERO


@kernel
def multiply(x, row_bytes, rows, size, weight, panels, bias, out, outputs, item, workers, tag):
    """Out [rows, outputs] = x [rows, size] times panels, plus bias; all of one storage type but the bias."""
    wide = np.empty((rows + SPARE_ROWS, size), np.float32)
    _widen(x, row_bytes, rows, size, item, wide, tag)
    counter = counters(rows // ROW_CHUNK + 1)
    if workers == 1 or rows * size * outputs < SERIAL_WORK:
        sums = np.empty((6, LANES), np.float32)
        _share(wide, rows, size, weight, panels, bias, out, outputs, item, counter, sums, tag)
    else:
        for _worker in prange(workers):
            space = np.empty((6, LANES), np.float32)
            _share(wide, rows, size, weight, panels, bias, out, outputs, item, counter, space, tag)
