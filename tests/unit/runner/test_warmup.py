"""The steps of warm-up: they fit any pool, and together take every path."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_replica.runner.step import check_bounds, step_arrays
from pagemill_replica.runner.warmup import EVERYTHING, GREEDY, PLAIN, warm_up_plans


@settings(deadline=None)
@given(num_blocks=st.integers(1, 20), block_size=st.integers(1, 40), max_context=st.integers(1, 200))
def test_plans_fit_any_pool_and_context(num_blocks: int, block_size: int, max_context: int) -> None:
    plans = warm_up_plans(num_blocks, block_size, max_context)
    assert plans
    for plan in plans:
        arrays = step_arrays(plan.sequences, block_size)
        check_bounds(arrays, 1, max_context, num_blocks)
        assert len(set(arrays.slots.tolist())) == len(arrays.slots)


@settings(deadline=None)
@given(num_blocks=st.integers(1, 20), block_size=st.integers(1, 40), max_context=st.integers(1, 200))
def test_no_step_reads_what_no_step_before_wrote(num_blocks: int, block_size: int, max_context: int) -> None:
    written: set[tuple[int, int]] = set()
    for plan in warm_up_plans(num_blocks, block_size, max_context):
        for s in plan.sequences:
            assert {(s.key, position) for position in range(s.start)} <= written
            written |= {(s.key, s.start + i) for i in range(s.count)}


def test_a_usual_pool_gets_prefill_decode_a_mixture_and_every_way_to_draw() -> None:
    plans = warm_up_plans(100, 16, 2048)
    shapes = [[s.count > 1 for s in plan.sequences] for plan in plans]
    assert [True, True] in shapes
    assert [False, False] in shapes
    assert [True, False] in shapes
    assert {id(s.sampling) for plan in plans for s in plan.sequences} == {id(GREEDY), id(EVERYTHING), id(PLAIN)}


def test_keys_are_none_of_a_request() -> None:
    assert all(s.key < 0 for plan in warm_up_plans(100, 16, 2048) for s in plan.sequences)
