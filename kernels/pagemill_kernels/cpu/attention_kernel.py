"""Paged attention for CPUs: one kernel for prefill, chunked prefill, decode and mixtures of them.

Threads take tiles of queries from a shared counter. Where tiles are few for the threads, each segment of the context is
shared out on its own and the parts are merged in order: the same bits as one thread that goes through them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels.cpu.addresses import counters, pointer, take_next
from pagemill_kernels.cpu.attention_plan import (
    FIRST_PART,
    FIRST_QUERY,
    HEAD,
    HIGH,
    LOW,
    PARTS,
    QUERIES,
    SEQUENCE,
    SERIAL_WORK,
    first_wrong,
    plan_tiles,
    row_capacity,
    split_tiles,
)
from pagemill_kernels.cpu.attention_tiles import (
    COLUMN,
    NEGATIVE,
    ROW_BLOCK,
    SEGMENT_COLUMNS,
    TILE,
    TILE_COLUMNS,
    ZERO,
    Geometry,
    column_start,
    finish_row,
    merge,
    scores,
    weighted_values,
    weights,
)
from pagemill_kernels.cpu.jit import carray, inner, int64, kernel, prange
from pagemill_kernels.cpu.vector import load, store

# Places in `arguments`. Addresses, then sizes; ROW_STRIDE, ITEM and QUERY_ITEM are bytes.
Q, OUT, KEYS, VALUES, STARTS, LENS, TABLES = range(7)
ROWS, ROW_STRIDE, HEADS, DIM, KV_HEADS, SLOTS, PADDED_DIM, BLOCK_SIZE, ITEM, QUERY_ITEM = range(7, 17)
SEQUENCES, TABLE_WIDTH, WINDOW, BLOCKS = range(17, 21)


@inner
def _make_state(count, rows, padded_dim):
    """Softmax states: largest scores, sums by lane, weighted values."""
    return (
        np.empty((count, rows), np.float32),
        np.empty((count, rows, COLUMN), np.float32),
        np.empty((count, rows, padded_dim), np.float32),
    )


@inner
def _make_space(rows, padded_dim):
    """Scratch of one thread: queries, scores of a tile, decay, and per column key and value addresses, slot bounds."""
    return (
        np.zeros((rows, padded_dim), np.float32),
        np.zeros((rows, TILE), np.float32),
        np.zeros(rows, np.float32),
        np.zeros(TILE_COLUMNS, np.int64),
        np.zeros(TILE_COLUMNS, np.int64),
        np.zeros(TILE_COLUMNS, np.int64),
        np.zeros(TILE_COLUMNS, np.int64),
    )


@inner
def _load_queries(q, row_stride, tile, first_row, geometry, scale, space, q_tag):
    """Fills the scratch with a tile's queries, scaled; returns the rows, and them rounded up to row blocks."""
    queries = space[0]
    rows = tile[QUERIES] * geometry.group
    for row in range(rows):
        query = first_row + tile[FIRST_QUERY] + row // geometry.group
        head = tile[HEAD] * geometry.group + row % geometry.group
        source = q + query * row_stride + head * geometry.dim * geometry.query_item
        for d in range(geometry.dim):
            queries[row, d] = load(source + d * geometry.query_item, q_tag) * scale
    whole = -(-rows // ROW_BLOCK) * ROW_BLOCK
    queries[rows:whole] = ZERO
    return rows, whole


@inner
def _attend(tile, low, high, geometry, first_position, whole, keys, values, table, space, peaks, sums, acc, tag):
    """Softmax state of a tile's loaded queries over columns [low, high), from a fresh one."""
    queries, tile_scores, decay, key_at, value_at, skipped, used = space
    peaks[:] = NEGATIVE
    sums[:] = ZERO
    acc[:] = ZERO
    rows = tile[QUERIES] * geometry.group
    end = first_position + tile[QUERIES]
    lowest = first_position - geometry.window + 1 if geometry.window > 0 else int64(0)
    for first in range(low // TILE_COLUMNS * TILE_COLUMNS, high, TILE_COLUMNS):
        begin = max(first, low)
        columns = min(first + TILE_COLUMNS, high) - begin
        for column in range(columns):
            start, lanes, place, offset = column_start(geometry, begin + column)
            block = int64(table[place])
            key_at[column] = (
                keys + block * geometry.key_block + tile[HEAD] * geometry.key_head + offset * geometry.value_item
            )
            value_at[column] = (
                values + block * geometry.value_block + tile[HEAD] * geometry.value_head + offset * geometry.value_step
            )
            skipped[column] = max(0, lowest - start)
            used[column] = min(lanes, end - start)
        scores(queries.ctypes.data, whole, geometry, key_at, columns, tile_scores.ctypes.data, tag)
        for row in range(rows):
            position = first_position + row // geometry.group
            weights(tile_scores.ctypes.data, row, position, geometry, begin, columns, peaks, sums.ctypes.data, decay)
        weighted_values(
            tile_scores.ctypes.data, whole, geometry, value_at, skipped, used, columns, decay, acc.ctypes.data, tag
        )


@inner
def _attend_all(tile, geometry, first_position, whole, keys, values, table, space, total, part, tag):
    """The state over all that a tile sees, into total[0], segment by segment."""
    peaks, sums, acc = total[0][0, :whole], total[1][0, :whole], total[2][0, :whole]
    for segment in range(tile[LOW] // SEGMENT_COLUMNS, (tile[HIGH] - 1) // SEGMENT_COLUMNS + 1):
        low = max(tile[LOW], segment * SEGMENT_COLUMNS)
        high = min(tile[HIGH], (segment + 1) * SEGMENT_COLUMNS)
        if low == tile[LOW]:
            _attend(tile, low, high, geometry, first_position, whole, keys, values, table, space, peaks, sums, acc, tag)
            continue
        p, s, a = part[0][0, :whole], part[1][0, :whole], part[2][0, :whole]
        _attend(tile, low, high, geometry, first_position, whole, keys, values, table, space, p, s, a, tag)
        merge(whole, geometry, peaks, sums.ctypes.data, acc.ctypes.data, p, s.ctypes.data, a.ctypes.data)


@inner
def _finish(tile, first_row, geometry, sums, acc, out, heads, q_tag):
    """Writes a tile's outputs."""
    for row in range(tile[QUERIES] * geometry.group):
        query = first_row + tile[FIRST_QUERY] + row // geometry.group
        head = tile[HEAD] * geometry.group + row % geometry.group
        to = out + (query * heads + head) * geometry.dim * geometry.query_item
        finish_row(acc[row].ctypes.data, sums[row].ctypes.data, geometry, to, q_tag)


@inner
def _geometry(arguments, softcap):
    """The sizes that tiles share, from the arguments of the kernel."""
    a = arguments
    dim, slots, item, padded_dim, block_size = a[DIM], a[SLOTS], a[ITEM], a[PADDED_DIM], a[BLOCK_SIZE]
    key_head, value_head = dim * slots * item, block_size * padded_dim * item
    return Geometry(
        a[HEADS] // a[KV_HEADS],
        dim,
        padded_dim,
        block_size,
        slots // COLUMN,
        a[KV_HEADS] * key_head,
        key_head,
        slots * item,
        a[KV_HEADS] * value_head,
        value_head,
        padded_dim * item,
        item,
        a[QUERY_ITEM],
        a[WINDOW],
        softcap,
    )


@inner
def _index_arrays(arguments):
    """The batch's query starts, context lengths and block tables."""
    sequences = arguments[SEQUENCES]
    return (
        carray(pointer(arguments[STARTS]), (sequences + 1,), np.int32),
        carray(pointer(arguments[LENS]), (sequences,), np.int32),
        carray(pointer(arguments[TABLES]), (sequences, arguments[TABLE_WIDTH]), np.int32),
    )


@inner
def _share(arguments, scale, softcap, tiles, parts, states, counter, tag, q_tag):
    """One thread's share: whole tiles, or single segments of them where `parts` lists any."""
    geometry = _geometry(arguments, softcap)
    starts, lens, tables = _index_arrays(arguments)
    q, row_stride, out, heads = arguments[Q], arguments[ROW_STRIDE], arguments[OUT], arguments[HEADS]
    keys, values = arguments[KEYS], arguments[VALUES]
    capacity = row_capacity(tiles, geometry.group)
    space = _make_space(capacity, geometry.padded_dim)
    total = _make_state(1, capacity, geometry.padded_dim)
    part = _make_state(1, capacity, geometry.padded_dim)
    split = len(parts) > 0
    number = len(parts) if split else len(tiles)
    while True:
        taken = take_next(counter.ctypes.data)
        if taken >= number:
            return
        tile = tiles[parts[taken, 0]] if split else tiles[taken]
        sequence = tile[SEQUENCE]
        first_row = int64(starts[sequence])
        _, whole = _load_queries(q, row_stride, tile, first_row, geometry, scale, space, q_tag)
        first_position = lens[sequence] - (starts[sequence + 1] - first_row) + tile[FIRST_QUERY]
        table = tables[sequence]
        if split:
            low = max(tile[LOW], parts[taken, 1] * SEGMENT_COLUMNS)
            high = min(tile[HIGH], (parts[taken, 1] + 1) * SEGMENT_COLUMNS)
            p, s, a = states[0][taken, :whole], states[1][taken, :whole], states[2][taken, :whole]
            _attend(tile, low, high, geometry, first_position, whole, keys, values, table, space, p, s, a, tag)
        else:
            _attend_all(tile, geometry, first_position, whole, keys, values, table, space, total, part, tag)
            _finish(tile, first_row, geometry, total[1][0], total[2][0], out, heads, q_tag)


@inner
def _merge_parts(arguments, tiles, states, q_tag):
    """Adds up the parts of each tile in order and writes the outputs."""
    geometry = _geometry(arguments, ZERO)
    starts, _, _ = _index_arrays(arguments)
    peaks, sums, acc = states
    for tile in tiles:
        first = tile[FIRST_PART]
        rows = tile[QUERIES] * geometry.group
        for p in range(first + 1, first + tile[PARTS]):
            merge(
                rows,
                geometry,
                peaks[first],
                sums[first].ctypes.data,
                acc[first].ctypes.data,
                peaks[p],
                sums[p].ctypes.data,
                acc[p].ctypes.data,
            )
        _finish(
            tile,
            int64(starts[tile[SEQUENCE]]),
            geometry,
            sums[first],
            acc[first],
            arguments[OUT],
            arguments[HEADS],
            q_tag,
        )


@inner
def _clear(arguments, q_tag):
    """Padding rows give 0."""
    starts, _, _ = _index_arrays(arguments)
    elements = arguments[HEADS] * arguments[DIM]
    for at in range(int64(starts[arguments[SEQUENCES]]) * elements, arguments[ROWS] * elements):
        store(arguments[OUT] + at * arguments[QUERY_ITEM], ZERO, q_tag)


@inner
def _plan(arguments, workers):
    """(tiles, parts, states of the parts, workers to start)."""
    starts, lens, _ = _index_arrays(arguments)
    geometry = _geometry(arguments, ZERO)
    tiles, work = plan_tiles(
        starts,
        lens,
        arguments[KV_HEADS],
        geometry.group,
        geometry.block_size,
        geometry.columns_per_block,
        geometry.window,
    )
    if work < SERIAL_WORK:
        workers = 1
    parts = split_tiles(tiles, workers)
    states = _make_state(len(parts), row_capacity(tiles, geometry.group), geometry.padded_dim)
    return tiles, parts, states, workers


@kernel
def attend_batch(arguments, scale, softcap, workers, tag, q_tag):
    """Attention of a whole batch; arguments are the addresses, sizes and strides that this module names, int64.

    Returns -1, or the first sequence that is wrong, and has written nothing then.
    """
    starts, lens, tables = _index_arrays(arguments)
    a = arguments
    wrong = first_wrong(starts, lens, tables, a[ROWS], a[BLOCKS], a[BLOCK_SIZE], a[WINDOW])
    if wrong >= 0:
        return wrong
    tiles, parts, states, workers = _plan(arguments, workers)
    peaks, sums, acc = states
    counter = counters(1)
    if workers == 1:
        _share(arguments, scale, softcap, tiles, parts, states, counter, tag, q_tag)
    else:
        for _worker in prange(workers):
            _share(arguments, scale, softcap, tiles, parts, (peaks, sums, acc), counter, tag, q_tag)
    if len(parts) > 0:
        _merge_parts(arguments, tiles, states, q_tag)
    _clear(arguments, q_tag)
    return -1
