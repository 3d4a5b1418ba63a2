"""Paged attention on CPUs against the oracle in float64, and the bits that must not change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagemill_kernels import ops, reference
from pagemill_kernels.types import AttentionBatch

BOUNDS = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def _run(case: Any, **options: Any) -> Tensor:
    return ops.paged_attention(case.q, case.kv, 0, case.batch, scale=case.q.shape[2] ** -0.5, **options)


def _oracle(case: Any, **options: Any) -> Tensor:
    keys, values = case.canonical()
    return reference.paged_attention(
        case.q.double(), keys, values, case.batch, scale=case.q.shape[2] ** -0.5, **options
    )


def _check(case: Any, bound: float | None = None, **options: Any) -> None:
    got, want = _run(case, **options), _oracle(case, **options)
    assert got.dtype == case.q.dtype
    largest = max([1.0, *want.abs().flatten().tolist()])
    torch.testing.assert_close(got.double(), want, rtol=0, atol=(bound or BOUNDS[case.q.dtype]) * largest)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 3))
    block_size = draw(st.sampled_from([4, 8, 16, 32]))
    edges = st.sampled_from([1, 2, block_size - 1, block_size, block_size + 1, 3 * block_size, 63, 64, 65, 130])
    context_lens = draw(st.lists(edges.filter(bool), min_size=1, max_size=4))
    query_lens = [draw(st.sampled_from(sorted({0, 1, min(2, n), max(1, n - 1), n}))) for n in context_lens]
    return {
        "heads": kv_heads * draw(st.integers(1, 8)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from([8, 16, 24, 64, 80])),
        "block_size": block_size,
        "context_lens": context_lens,
        "query_lens": query_lens,
        "padding_rows": draw(st.integers(0, 3)),
        "seed": draw(st.integers(0, 1000)),
    }


@given(shape=shapes(), window=st.sampled_from([0, 0, 1, 5, 16, 40]), softcap=st.sampled_from([0.0, 0.0, 3.0, 30.0]))
@settings(max_examples=120)
def test_equals_the_oracle(
    attention_case: Callable[..., Any], shape: dict[str, Any], window: int, softcap: float
) -> None:
    _check(attention_case(**shape), window=window, softcap=softcap)


@given(shape=shapes(), dtype=st.sampled_from([torch.bfloat16, torch.float16]), window=st.sampled_from([0, 16]))
def test_equals_the_oracle_in_half_precision(
    attention_case: Callable[..., Any], shape: dict[str, Any], dtype: torch.dtype, window: int
) -> None:
    _check(attention_case(**shape, dtype=dtype), window=window)


@pytest.mark.parametrize("window", [0, 700])
def test_contexts_of_several_segments(attention_case: Callable[..., Any], two_threads: None, window: int) -> None:
    case = attention_case(
        heads=4, kv_heads=2, head_dim=16, block_size=16, context_lens=[2500, 1024, 1025, 3], query_lens=[1, 40, 2, 3]
    )
    _check(case, window=window)


def test_large_scores_do_not_overflow(attention_case: Callable[..., Any]) -> None:
    case = attention_case(heads=2, kv_heads=1, head_dim=64, block_size=16, context_lens=[100, 20], query_lens=[30, 1])
    case.q *= 1000
    # Scores of some thousands have an absolute error of 1e-3 in float32, and so have their weights.
    _check(case, bound=5e-3)


def test_padding_rows_are_zero_and_unused_blocks_are_never_read(attention_case: Callable[..., Any]) -> None:
    case = attention_case(
        heads=3, kv_heads=1, head_dim=16, block_size=16, context_lens=[17, 33], query_lens=[2, 1], padding_rows=5
    )
    case.q[3:] = float("nan")
    out = _run(case)
    assert torch.isfinite(out).all()
    assert (out[3:] == 0).all()


def test_blocks_that_slid_out_of_the_window_are_never_read(attention_case: Callable[..., Any]) -> None:
    case = attention_case(heads=2, kv_heads=1, head_dim=16, block_size=16, context_lens=[200], query_lens=[3])
    want = _run(case, window=32)
    # Positions up to 200 - 3 - 32 are out of every query's sight: 10 whole blocks and slots of the next.
    gone = case.batch.block_tables[0, :10].long()
    for tensor in case.kv.tensors:
        tensor[:, gone] = float("nan")
    case.batch.block_tables[0, :10] = -(2**30)
    assert torch.equal(_run(case, window=32), want)


def _piecewise(case: Any, cuts: list[int], **options: Any) -> Tensor:
    """The single sequence of a case, computed in several steps."""
    length = int(case.batch.context_lens[0])
    parts = []
    for low, high in itertools.pairwise([0, *cuts, length]):
        batch = AttentionBatch(
            torch.tensor([0, high - low], dtype=torch.int32),
            torch.tensor([high], dtype=torch.int32),
            case.batch.block_tables,
        )
        parts.append(
            ops.paged_attention(
                case.q[low:high], case.kv, 0, batch, scale=case.q.shape[2] ** -0.5, deterministic=True, **options
            )
        )
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (50, 0.0), (0, 5.0)])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(
    attention_case: Callable[..., Any], dtype: torch.dtype, window: int, softcap: float
) -> None:
    case = attention_case(
        heads=9, kv_heads=3, head_dim=64, block_size=16, context_lens=[1100], query_lens=[1100], dtype=dtype
    )
    options = {"window": window, "softcap": softcap}
    whole = _piecewise(case, [], **options)
    for cuts in ([1], [16, 32, 1024], [7, 300, 301, 1099], list(range(1000, 1100))):
        assert torch.equal(_piecewise(case, cuts, **options), whole)


def test_bits_do_not_depend_on_neighbours_or_threads(attention_case: Callable[..., Any]) -> None:
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 64, "block_size": 16}
    case = attention_case(**shape, context_lens=[3000, 40, 700, 900], query_lens=[1, 40, 1, 100])
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(_run(case))
            starts = case.batch.query_start.tolist()
            for row in range(4):
                alone = AttentionBatch(
                    torch.tensor([0, starts[row + 1] - starts[row]], dtype=torch.int32),
                    case.batch.context_lens[row : row + 1],
                    case.batch.block_tables[row : row + 1],
                )
                q = case.q[starts[row] : starts[row + 1]]
                single = ops.paged_attention(q, case.kv, 0, alone, scale=64**-0.5, deterministic=True)
                assert torch.equal(single, results[0][starts[row] : starts[row + 1]])
        assert torch.equal(*results)
    finally:
        torch.set_num_threads(before)


def test_wrong_shapes_and_types_are_refused(attention_case: Callable[..., Any]) -> None:
    case = attention_case(heads=4, kv_heads=2, head_dim=16, block_size=16, context_lens=[5], query_lens=[1])
    with pytest.raises(ValueError, match="do not fit"):
        ops.paged_attention(case.q[:, :3], case.kv, 0, case.batch, scale=1.0)
    wide = AttentionBatch(case.batch.query_start, case.batch.context_lens.long(), case.batch.block_tables)
    with pytest.raises(TypeError, match="int32"):
        ops.paged_attention(case.q, case.kv, 0, wide, scale=1.0)
    with pytest.raises(TypeError, match="float64"):
        ops.paged_attention(case.q.double(), case.kv, 0, case.batch, scale=1.0)
    two = AttentionBatch(case.batch.query_start, case.batch.context_lens.repeat(2), case.batch.block_tables)
    with pytest.raises(ValueError, match="numbers of sequences"):
        ops.paged_attention(case.q, case.kv, 0, two, scale=1.0)


@pytest.mark.parametrize(
    ("starts", "lens", "table"),
    [
        ([0, 2, 4], [17, 3], [[0, 1], [2, 0]]),  # more queries than rows
        ([1, 2, 3], [17, 3], [[0, 1], [2, 0]]),  # a row of nobody's
        ([0, 2, 1], [17, 3], [[0, 1], [2, 0]]),  # queries that run backwards
        ([0, 2, 3], [1, 3], [[0, 1], [2, 0]]),  # more queries than context
        ([0, 2, 3], [33, 3], [[0, 1], [2, 0]]),  # a context longer than its table
        ([0, 2, 3], [17, 3], [[0, 9], [2, 0]]),  # a block that the cache lacks
        ([0, 2, 3], [17, 3], [[-1, 1], [2, 0]]),
    ],
)
def test_a_batch_that_reaches_outside_is_refused(starts: list[int], lens: list[int], table: list[list[int]]) -> None:
    kv = ops.alloc_kv(ops.KvLayout(1, 1, 8, 16, torch.float32), 3, "cpu")
    batch = AttentionBatch(*(torch.tensor(field, dtype=torch.int32) for field in (starts, lens, table)))
    with pytest.raises(ValueError, match="reaches outside"):
        ops.paged_attention(torch.zeros(3, 2, 8), kv, 0, batch, scale=1.0)


def test_no_sequences_and_no_rows() -> None:
    kv = ops.alloc_kv(ops.KvLayout(1, 1, 8, 16, torch.float32), 1, "cpu")
    none = torch.zeros(0, dtype=torch.int32)
    batch = AttentionBatch(torch.zeros(1, dtype=torch.int32), none, none.view(0, 1))
    assert ops.paged_attention(torch.zeros(0, 2, 8), kv, 0, batch, scale=1.0).shape == (0, 2, 8)
    assert (ops.paged_attention(torch.ones(2, 2, 8), kv, 0, batch, scale=1.0) == 0).all()
