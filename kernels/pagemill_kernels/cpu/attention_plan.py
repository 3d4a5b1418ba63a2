"""How one call of paged attention is cut into work items for threads."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels.cpu.attention_tiles import COLUMN, ROW_BLOCK, SEGMENT_COLUMNS
from pagemill_kernels.cpu.jit import inner

TILE_ROWS = 64
"""Rows (query, head of the group) in a tile of queries, unless one query alone has more."""
SERIAL_WORK = 40_000
"""Row-times-position products below which starting threads costs more than it saves."""
ITEMS_PER_THREAD = 4
"""With fewer items than this for a thread, each segment of a context becomes an item of its own."""

SEQUENCE, FIRST_QUERY, QUERIES, HEAD, LOW, HIGH, FIRST_PART, PARTS = range(8)
"""Fields of a tile: queries [first, first + queries) of a sequence, for one kv head, see columns [low, high)."""
FIELDS = 8


@inner
def column_of(position, block_size, columns_per_block):
    """The column that holds a position."""
    place = position // block_size
    return place * columns_per_block + (position - place * block_size) // COLUMN


@inner
def first_wrong(query_start, context_lens, tables, rows, blocks, block_size, window):
    """The first sequence whose queries are no rows, or that sees what is in no block; -1 where all are sound."""
    for s in range(len(context_lens)):
        queries = query_start[s + 1] - query_start[s]
        length = context_lens[s]
        if query_start[0] != 0 or queries < 0 or query_start[s + 1] > rows or length < queries:
            return s
        if length > tables.shape[1] * block_size:
            return s
        if queries == 0:
            continue
        lowest = max(0, length - queries - window + 1) if window > 0 else 0
        for place in range(lowest // block_size, (length - 1) // block_size + 1):
            if tables[s, place] < 0 or tables[s, place] >= blocks:
                return s
    return -1


@inner
def plan_tiles(query_start, context_lens, kv_heads, group, block_size, columns_per_block, window):
    """(tiles [n, FIELDS], row-times-position products): costly tiles of a sequence come first."""
    per_tile = max(1, TILE_ROWS // group)
    count = 0
    for s in range(len(context_lens)):
        count += -(-(query_start[s + 1] - query_start[s]) // per_tile) * kv_heads
    tiles = np.zeros((count, FIELDS), np.int64)
    at = 0
    work = 0
    for s in range(len(context_lens)):
        queries = query_start[s + 1] - query_start[s]
        for number in range(-(-queries // per_tile) - 1, -1, -1):
            first = number * per_tile
            taken = min(per_tile, queries - first)
            position = context_lens[s] - queries + first
            lowest = max(0, position - window + 1) if window > 0 else 0
            for head in range(kv_heads):
                tile = tiles[at]
                tile[SEQUENCE] = s
                tile[FIRST_QUERY] = first
                tile[QUERIES] = taken
                tile[HEAD] = head
                tile[LOW] = column_of(lowest, block_size, columns_per_block)
                tile[HIGH] = column_of(position + taken - 1, block_size, columns_per_block) + 1
                work += taken * group * (position + taken - lowest)
                at += 1
    return tiles, work


@inner
def split_tiles(tiles, threads):
    """Parts [n, 2] of (tile, segment), and each tile's first part and number; no parts where tiles are plenty."""
    if threads == 1 or len(tiles) >= ITEMS_PER_THREAD * threads:
        return np.zeros((0, 2), np.int64)
    count = 0
    for tile in tiles:
        tile[FIRST_PART] = count
        tile[PARTS] = (tile[HIGH] - 1) // SEGMENT_COLUMNS - tile[LOW] // SEGMENT_COLUMNS + 1
        count += tile[PARTS]
    if count == len(tiles):
        return np.zeros((0, 2), np.int64)
    parts = np.zeros((count, 2), np.int64)
    for index in range(len(tiles)):
        for part in range(tiles[index, PARTS]):
            parts[tiles[index, FIRST_PART] + part, 0] = index
            parts[tiles[index, FIRST_PART] + part, 1] = tiles[index, LOW] // SEGMENT_COLUMNS + part
    return parts


@inner
def row_capacity(tiles, group):
    """Rows that scratch space holds for the largest tile: whole row blocks."""
    queries = 0
    for tile in tiles:
        queries = max(queries, tile[QUERIES])
    return -(-queries * group // ROW_BLOCK) * ROW_BLOCK
