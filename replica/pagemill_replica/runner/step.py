"""A step plan as flat arrays: what the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from pagemill_replica.engine.plan import ScheduledSequence

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """n tokens of s sequences, in the plan's order."""

    token_ids: Int64s
    """[n]."""
    positions: Int64s
    """[n]."""
    slots: Int64s
    """[n]: block * block size + offset."""
    query_start: Int32s
    """[s + 1]."""
    context_lens: Int32s
    """[s]."""
    block_tables: Int32s
    """[s, blocks of the longest]; unused entries are 0."""
    sample_rows: Int64s
    """[r]: rows whose logits are drawn from."""


def step_arrays(sequences: Sequence[ScheduledSequence], block_size: int) -> StepArrays:
    """Lays the sequences' tokens side by side.

    ValueError for a sequence without tokens, one that starts before position 0, or a block table too short for it.
    """
    count = len(sequences)
    lengths = np.fromiter((len(s.token_ids) for s in sequences), np.int64, count)
    starts = np.fromiter((s.start for s in sequences), np.int64, count)
    wrong = np.flatnonzero((lengths < 1) | (starts < 0))
    if wrong.size:
        sequence = sequences[wrong[0]]
        raise ValueError(f"sequence {sequence.key} has {lengths[wrong[0]]} tokens from position {sequence.start} on")
    query_start = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=query_start[1:])
    total = int(query_start[-1])
    owners = np.repeat(np.arange(count), lengths)
    positions = np.arange(total) + (starts - query_start[:-1])[owners]
    contexts = starts + lengths
    tables = _block_tables(sequences, -(-contexts // block_size))
    samples = np.fromiter((s.samples for s in sequences), np.bool_, count)
    return StepArrays(
        token_ids=np.fromiter(chain.from_iterable(s.token_ids for s in sequences), np.int64, total),
        positions=positions,
        slots=tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        query_start=query_start.astype(np.int32),
        context_lens=contexts.astype(np.int32),
        block_tables=tables,
        sample_rows=query_start[1:][samples] - 1,
    )


def check_bounds(arrays: StepArrays, vocab_size: int, max_positions: int, num_blocks: int) -> None:
    """ValueError for what would read or write outside the model's memory, before a kernel has written anything."""
    _check("token id", arrays.token_ids, vocab_size)
    _check("position", arrays.positions, max_positions)
    _check("block id", arrays.block_tables, num_blocks)


def _check(what: str, values: Int32s | Int64s, limit: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        raise ValueError(f"{what} {low if low < 0 else high} is outside [0, {limit})")


def _block_tables(sequences: Sequence[ScheduledSequence], needed: Int64s) -> Int32s:
    """The first `needed` block ids of each sequence, rows padded with 0."""
    for sequence, blocks in zip(sequences, needed, strict=True):
        if len(sequence.block_table) < blocks:
            held = len(sequence.block_table)
            raise ValueError(f"sequence {sequence.key} holds {held} blocks; its tokens fill {blocks}")
    width = int(needed.max(initial=1))
    tables = np.zeros((len(sequences), width), np.int32)
    ids = chain.from_iterable(islice(s.block_table, n) for s, n in zip(sequences, needed.tolist(), strict=True))
    tables[np.arange(width) < needed[:, None]] = np.fromiter(ids, np.int32, int(needed.sum()))
    return tables
