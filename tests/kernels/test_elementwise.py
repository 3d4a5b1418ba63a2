"""Norms, the gated activation, rotation and cache writes on CPUs against the oracle in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pagemill_kernels import ops, reference

UNIT = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
TYPES = st.sampled_from(list(UNIT))
SIZES = st.sampled_from([2, 7, 16, 33, 64, 576])
ROWS = st.sampled_from([1, 2, 3, 100])


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def _close(got: Tensor, want: Tensor, units: float = 4) -> None:
    bound = UNIT[got.dtype] * units
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound)


@given(rows=ROWS, size=SIZES, dtype=TYPES, eps=st.sampled_from([1e-6, 1e-5]), scale=st.sampled_from([1e-3, 1.0, 50.0]))
def test_rms_norm(rows: int, size: int, dtype: torch.dtype, eps: float, scale: float) -> None:
    x, weight = _normal((rows, size), dtype, 0, scale), _normal((size,), dtype, 1)
    _close(ops.rms_norm(x, weight, eps), reference.rms_norm(x.double(), weight.double(), eps))


@given(rows=ROWS, size=SIZES, dtype=TYPES)
def test_add_rms_norm_norms_the_rounded_sum(rows: int, size: int, dtype: torch.dtype) -> None:
    x, residual, weight = (_normal((rows, size), dtype, seed) for seed in (0, 1, 2))
    normed, total = ops.add_rms_norm(x, residual, weight[0], 1e-5)
    assert torch.equal(total, x + residual)
    _close(normed, reference.rms_norm(total.double(), weight[0].double(), 1e-5))


@given(rows=ROWS, size=SIZES, dtype=TYPES, scale=st.sampled_from([0.1, 3.0, 100.0]))
def test_silu_mul(rows: int, size: int, dtype: torch.dtype, scale: float) -> None:
    gate_up = _normal((rows, 2 * size), dtype, 0, scale)
    _close(ops.silu_mul(gate_up), reference.silu_mul(gate_up.double()), units=8)


def test_silu_of_extremes() -> None:
    gate = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0, 1e30])
    got = ops.silu_mul(torch.cat((gate, torch.ones(7)))[None])
    torch.testing.assert_close(got[0], torch.tensor([0.0, 0.0, 0.0, 0.0, 88.0, 200.0, 1e30]), rtol=1e-6, atol=1e-28)


@pytest.mark.parametrize("dtype", list(UNIT))
def test_rounding_is_to_nearest_ties_to_even(dtype: torch.dtype) -> None:
    # A weight of all ones and a row of equal magnitudes leave the sum as the only thing that rounds.
    x = torch.randint(-(2**15), 2**15, (64, 64), generator=torch.Generator().manual_seed(0)).to(torch.int16)
    x = x.view(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16).float().nan_to_num(1.0).clamp(-1e4, 1e4)
    x = x.to(dtype)
    residual = torch.roll(x, 1, 0)
    assert torch.equal(ops.add_rms_norm(x, residual, torch.ones(64, dtype=dtype), 1e-5)[1], x + residual)


def _rope_case(draw: Any) -> dict[str, Any]:
    return {
        "heads": draw(st.sampled_from([1, 2, 9])),
        "kv_heads": draw(st.sampled_from([1, 3])),
        "dim": draw(st.sampled_from([8, 16, 64, 80])),
        "block_size": draw(st.sampled_from([4, 16, 32])),
        "rows": draw(st.sampled_from([1, 5, 200])),
        "dtype": draw(TYPES),
        "with_norm": draw(st.booleans()),
    }


@given(case=st.composite(_rope_case)())
def test_rope_write_kv(case: dict[str, Any]) -> None:
    heads, kv_heads, dim, rows, dtype = (case[k] for k in ("heads", "kv_heads", "dim", "rows", "dtype"))
    block_size = case["block_size"]
    # q, k and v are views of one wide matrix, as the fused projection gives them.
    wide = _normal((rows, heads + 2 * kv_heads, dim), dtype, 0)
    q, k, v = wide.split((heads, kv_heads, kv_heads), dim=1)
    angles = _normal((300, dim // 2), torch.float32, 1, 10.0)
    generator = torch.Generator().manual_seed(2)
    positions = torch.randint(0, 300, (rows,), generator=generator)
    blocks = rows // block_size + 2
    slots = torch.randperm(blocks * block_size, generator=generator)[:rows]
    slots[:: max(2, rows // 7)] = -1
    norms = [_normal((dim,), dtype, seed) for seed in (3, 4)] if case["with_norm"] else [None, None]
    kv = ops.alloc_kv(ops.KvLayout(2, kv_heads, dim, block_size, dtype), blocks, "cpu")
    for tensor in kv.tensors:
        tensor.fill_(77.0)
    got = ops.rope_write_kv(
        q, k, v, angles.cos(), angles.sin(), positions, slots, kv, 1, q_norm=norms[0], k_norm=norms[1]
    )
    written = ops.read_blocks(kv, torch.arange(blocks))
    keys, values = torch.full((2, blocks, block_size, kv_heads, dim), 77.0, dtype=torch.float64)
    wide_norms = [None if n is None else n.double() for n in norms]
    want = reference.rope_write_kv(
        q.double(),
        k.double(),
        v.double(),
        angles.cos(),
        angles.sin(),
        positions,
        slots,
        keys,
        values,
        q_norm=wide_norms[0],
        k_norm=wide_norms[1],
    )
    _close(got, want, units=16)
    _close(written[1, 0], keys, units=16)
    assert torch.equal(written[1, 1].double(), values)
    # Every slot that no row names, and the other layer, are as they were.
    assert (written[0] == 77.0).all()


def test_rows_alone_have_the_same_bits() -> None:
    x, weight = _normal((300, 576), torch.bfloat16, 0), _normal((576,), torch.bfloat16, 1)
    gate_up = _normal((300, 1152), torch.bfloat16, 2)
    assert torch.equal(ops.rms_norm(x, weight, 1e-5)[7:8], ops.rms_norm(x[7:8], weight, 1e-5))
    assert torch.equal(ops.silu_mul(gate_up)[7:8], ops.silu_mul(gate_up[7:8]))


def test_embedding_takes_rows() -> None:
    weight = _normal((10, 4), torch.bfloat16, 0)
    ids = torch.tensor([9, 0, 9])
    assert torch.equal(ops.embedding(ids, weight), reference.embedding(ids, weight))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="norm of"):
        ops.rms_norm(torch.zeros(2, 8), torch.zeros(7), 1e-5)
    for shape in ((2, 7), (2, 4, 8)):
        with pytest.raises(ValueError, match="halves"):
            ops.silu_mul(torch.zeros(shape))
    with pytest.raises(TypeError, match="float64"):
        ops.rms_norm(torch.zeros(2, 8).double(), torch.zeros(8), 1e-5)
    kv = ops.alloc_kv(ops.KvLayout(1, 2, 8, 16, torch.float32), 1, "cpu")
    heads, angles, index = torch.zeros(1, 3, 8), torch.zeros(4, 4), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="do not fit the cache"):
        ops.rope_write_kv(heads, heads, heads, angles, angles, index, index, kv, 0)
    with pytest.raises(TypeError, match="int64"):
        ops.rope_write_kv(heads, heads[:, :2], heads[:, :2], angles, angles, index.int(), index, kv, 0)


def _rope(**changes: Any) -> None:
    """One row of three query heads and two kv heads, over a cache of two blocks, with arguments replaced."""
    heads, angles = torch.ones(1, 3, 8), torch.zeros(4, 4)
    arguments = {
        "q": heads,
        "k": heads[:, :2],
        "v": heads[:, :2],
        "cos": angles,
        "sin": angles,
        "positions": torch.tensor([3]),
        "slots": torch.tensor([31]),
        "kv": ops.alloc_kv(ops.KvLayout(1, 2, 8, 16, torch.float32), 2, "cpu"),
        "layer": 0,
        **changes,
    }
    try:
        ops.rope_write_kv(**arguments)
    except (TypeError, ValueError):
        assert (ops.read_blocks(arguments["kv"], torch.arange(2)) == 0).all()
        raise


def test_the_last_position_and_slot_are_taken_and_the_next_refused() -> None:
    _rope()
    for name, beyond in (("positions", 4), ("positions", -1), ("slots", 32), ("slots", 2**40)):
        with pytest.raises(ValueError, match="position is outside"):
            _rope(**{name: torch.tensor([beyond])})


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": torch.tensor([0, 0])},
        {"slots": torch.tensor([[0]])},
        {"cos": torch.zeros(4, 8)},
        {"sin": torch.zeros(3, 4)},
        {"cos": torch.zeros(4, 8)[:, ::2]},
        {"sin": torch.zeros(4, 4, dtype=torch.float64)},
        {"k": torch.ones(1, 2, 8).bfloat16()},
        {"v": torch.ones(1, 2, 8).bfloat16()},
        {"q": torch.ones(1, 3, 10)},
        {"q_norm": torch.ones(4)},
        {"k_norm": torch.ones(16)[::2]},
        {"q_norm": torch.ones(8), "k_norm": torch.ones(8).bfloat16()},
    ],
)
def test_rotations_that_would_read_the_wrong_memory_are_refused(changes: dict[str, Tensor]) -> None:
    with pytest.raises((TypeError, ValueError)):
        _rope(**changes)


def test_a_strided_weight_is_read_as_it_is() -> None:
    x, weight = _normal((2, 8), torch.float32, 0), _normal((16,), torch.float32, 1)[::2]
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight.contiguous(), 1e-5))


def test_nan_stays_in_its_row() -> None:
    rows = torch.ones(3, 40)
    rows[1, 5] = float("nan")
    for got in (ops.rms_norm(rows, torch.ones(40), 1e-5), ops.silu_mul(rows)):
        assert torch.isfinite(got[[0, 2]]).all()
        assert torch.isnan(got[1]).any()


def test_no_rows() -> None:
    none = torch.zeros(0, 8)
    assert ops.rms_norm(none, torch.ones(8), 1e-5).shape == (0, 8)
    assert ops.add_rms_norm(none, none, torch.ones(8), 1e-5)[1].shape == (0, 8)
    assert ops.silu_mul(none).shape == (0, 4)
