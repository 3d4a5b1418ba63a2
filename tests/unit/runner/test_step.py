"""Plans as flat arrays, and what is refused before a kernel runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_replica.engine.plan import ScheduledSequence
from pagemill_replica.runner.step import check_bounds, step_arrays

Share = Callable[..., ScheduledSequence]


def test_a_prompt_fills_its_blocks_from_the_first_slot_on(share: Share) -> None:
    arrays = step_arrays([share([7, 8, 9, 10, 11], table=[3, 1], samples=True)], block_size=4)
    assert arrays.token_ids.tolist() == [7, 8, 9, 10, 11]
    assert arrays.positions.tolist() == [0, 1, 2, 3, 4]
    assert arrays.slots.tolist() == [12, 13, 14, 15, 4]
    assert arrays.query_start.tolist() == [0, 5]
    assert arrays.context_lens.tolist() == [5]
    assert arrays.block_tables.tolist() == [[3, 1]]
    assert arrays.sample_rows.tolist() == [4]


def test_a_chunk_goes_on_where_the_last_one_ended(share: Share) -> None:
    arrays = step_arrays([share([5, 6], start=3, table=[2, 0])], block_size=4)
    assert arrays.positions.tolist() == [3, 4]
    assert arrays.slots.tolist() == [11, 0]
    assert arrays.context_lens.tolist() == [5]
    assert arrays.sample_rows.tolist() == []


def test_prefill_chunk_and_decode_lie_side_by_side(share: Share) -> None:
    decode = share([1], start=8, table=[5, 6, 7], samples=True)
    chunk = share([2, 3, 4], start=4, table=[0, 1])
    prompt = share([9], table=[4], samples=True)
    arrays = step_arrays([decode, chunk, prompt], block_size=4)
    assert arrays.token_ids.tolist() == [1, 2, 3, 4, 9]
    assert arrays.positions.tolist() == [8, 4, 5, 6, 0]
    assert arrays.slots.tolist() == [28, 4, 5, 6, 16]
    assert arrays.query_start.tolist() == [0, 1, 4, 5]
    assert arrays.context_lens.tolist() == [9, 7, 1]
    assert arrays.block_tables.tolist() == [[5, 6, 7], [0, 1, 0], [4, 0, 0]]
    assert arrays.sample_rows.tolist() == [0, 4]


def test_blocks_held_beyond_the_tokens_are_left_out(share: Share) -> None:
    assert step_arrays([share([1, 2], table=[9, 8, 7])], block_size=2).block_tables.tolist() == [[9]]


@pytest.mark.parametrize(("tokens", "blocks"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_table_one_block_too_short_is_refused_and_the_right_one_taken(share: Share, tokens: int, blocks: int) -> None:
    step_arrays([share([0] * tokens, table=range(blocks))], block_size=4)
    with pytest.raises(ValueError, match=f"sequence 7 holds {blocks - 1} blocks; its tokens fill {blocks}"):
        step_arrays([share([0] * tokens, table=range(blocks - 1), key=7)], block_size=4)


def test_a_sequence_without_tokens_is_refused(share: Share) -> None:
    # Its sampled row would be its neighbour's.
    with pytest.raises(ValueError, match="sequence 8 has 0 tokens"):
        step_arrays([share([1], table=[0], samples=True), share([], table=[1], samples=True, key=8)], block_size=4)


@pytest.mark.parametrize("start", [-1, -1000])
def test_a_sequence_that_starts_before_position_0_is_refused(share: Share, start: int) -> None:
    with pytest.raises(ValueError, match=f"from position {start}"):
        step_arrays([share([1, 2], start=start, table=[0])], block_size=4)


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, bool]]]:
    sequence = st.tuples(st.integers(0, 70), st.integers(1, 40), st.booleans())
    return draw(st.integers(1, 33)), draw(st.lists(sequence, min_size=1, max_size=5))


@settings(deadline=None)
@given(step=steps())
def test_every_token_has_its_own_slot_in_its_own_block(
    share: Share, step: tuple[int, list[tuple[int, int, bool]]]
) -> None:
    block_size, shares = step
    deal, sequences = iter(np.random.default_rng(0).permutation(1000).tolist()), []
    for start, count, samples in shares:
        table = [next(deal) for _ in range(-(-(start + count) // block_size))]
        sequences.append(share(range(count), start=start, table=table, samples=samples))
    arrays = step_arrays(sequences, block_size)
    assert len(set(arrays.slots.tolist())) == len(arrays.slots)
    assert [len(sequences), *arrays.block_tables.shape[:1]] == [len(arrays.context_lens)] * 2
    row = 0
    for sequence, table in zip(sequences, arrays.block_tables, strict=True):
        for position in range(sequence.start, sequence.start + sequence.count):
            block, offset = divmod(int(arrays.slots[row]), block_size)
            assert (block, offset) == (sequence.block_table[position // block_size], position % block_size)
            assert block == table[position // block_size]
            assert arrays.positions[row] == position
            row += 1
        assert (row - 1 in arrays.sample_rows) == sequence.samples
    assert row == arrays.query_start[-1]


def _check(share: Share, *, token: int = 0, start: int = 0, table: tuple[int, ...] = (0, 0)) -> None:
    """Against a vocabulary of 10, 8 positions and 3 blocks of 4."""
    check_bounds(step_arrays([share([token], start=start, table=table)], 4), 10, 8, 3)


def test_the_last_token_position_and_block_are_within_bounds(share: Share) -> None:
    _check(share, token=9, start=7, table=(0, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": 10}, r"token id 10 is outside \[0, 10\)"),
        ({"token": -1}, r"token id -1 is outside \[0, 10\)"),
        ({"start": 8, "table": (0, 0, 0)}, r"position 8 is outside \[0, 8\)"),
        ({"start": 4, "table": (0, 3)}, r"block id 3 is outside \[0, 3\)"),
        ({"start": 4, "table": (-1, 0)}, r"block id -1 is outside \[0, 3\)"),
    ],
)
def test_what_is_out_of_bounds_is_named(share: Share, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _check(share, **changes)
