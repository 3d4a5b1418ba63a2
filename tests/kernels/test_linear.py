"""Matrix products on CPUs: right, and in deterministic mode the same bits for any number of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pagemill_kernels import ops
from pagemill_kernels.cpu import linear as cpu_linear

UNIT = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 13, 95, 96, 97, 130]),
    inputs=st.sampled_from([1, 16, 33, 192]),
    outputs=st.sampled_from([1, 15, 16, 17, 63, 64, 65, 200]),
    dtype=st.sampled_from(list(UNIT)),
    with_bias=st.booleans(),
    deterministic=st.booleans(),
)
def test_equals_the_product_in_float64(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, with_bias: bool, deterministic: bool
) -> None:
    weight, bias = _normal((outputs, inputs), dtype, 0), _normal((outputs,), dtype, 1) if with_bias else None
    x = _normal((rows, inputs + 8), dtype, 2)[:, 4 : inputs + 4]
    packed = ops.pack_weight(weight, bias, deterministic=deterministic)
    got = ops.linear(x, packed)
    want = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert got.dtype == dtype
    assert got.shape == (rows, outputs)
    # Rounding of the result, and of float32 sums of terms of about 1.
    bound = UNIT[dtype] * float(want.abs().max()) + 2.0**-21 * inputs
    torch.testing.assert_close(got.double(), want, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(576, 576), (192, 576), (1536, 576), (576, 1536)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(dtype: torch.dtype, outputs: int, inputs: int) -> None:
    packed = ops.pack_weight(_normal((outputs, inputs), dtype, 0), deterministic=True)
    x = _normal((130, inputs), dtype, 1)
    whole = ops.linear(x, packed)
    for rows in range(1, 131):
        assert torch.equal(ops.linear(x[:rows], packed), whole[:rows]), rows
    for first in (1, 5, 50, 129):
        assert torch.equal(ops.linear(x[first:], packed), whole[first:]), first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_has_the_same_bits_among_any_number_of_rows(dtype: torch.dtype) -> None:
    packed = ops.pack_weight(_normal((49152, 576), dtype, 0), deterministic=True)
    x = _normal((33, 576), dtype, 1)
    whole = ops.linear(x, packed)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 16, 31, 32):
        assert torch.equal(ops.linear(x[:rows], packed), whole[:rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    packed = ops.pack_weight(_normal((1000, 576), dtype, 0), deterministic=True)
    x = _normal((37, 576), dtype, 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = ops.linear(x, packed)
        torch.set_num_threads(2)
        assert torch.equal(ops.linear(x, packed), one)
    finally:
        torch.set_num_threads(before)


def test_a_processor_where_onednn_is_wrong_gets_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "_onednn_multiply", lambda x, packed, bias: torch.zeros((x.shape[0], 48)))
    cpu_linear.onednn_works.cache_clear()
    try:
        assert cpu_linear.choose_format(torch.float32, deterministic=False) == cpu_linear.PANELS
    finally:
        monkeypatch.undo()
        cpu_linear.onednn_works.cache_clear()


def test_a_processor_where_onednn_raises_gets_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_weight: Tensor) -> Tensor:
        raise RuntimeError("needs another processor")

    monkeypatch.setattr(cpu_linear, "_onednn_pack", refuse)
    cpu_linear.onednn_works.cache_clear()
    try:
        assert cpu_linear.choose_format(torch.bfloat16, deterministic=False) == cpu_linear.PANELS
    finally:
        monkeypatch.undo()
        cpu_linear.onednn_works.cache_clear()


def test_what_a_packed_weight_says_of_itself() -> None:
    weight, bias = torch.ones(20, 8, dtype=torch.bfloat16), torch.ones(20, dtype=torch.bfloat16)
    packed = ops.pack_weight(weight, bias, deterministic=True)
    assert (packed.out_features, packed.in_features, packed.deterministic) == (20, 8, True)
    # Outputs are padded to whole panels of sixteen; the bias is float32.
    assert packed.nbytes == 32 * 8 * 2 + 20 * 4


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="two dimensions"):
        ops.pack_weight(torch.zeros(3))
    with pytest.raises(ValueError, match="bias of shape"):
        ops.pack_weight(torch.zeros(3, 4), torch.zeros(4))
    for deterministic in (False, True):
        packed = ops.pack_weight(torch.zeros(3, 4), deterministic=deterministic)
        for wrong in (torch.zeros(2, 5), torch.zeros(4), torch.zeros(2, 4).bfloat16()):
            with pytest.raises(ValueError, match="does not fit"):
                ops.linear(wrong, packed)


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_rows_give_no_rows(deterministic: bool) -> None:
    packed = ops.pack_weight(torch.ones(3, 4), torch.ones(3), deterministic=deterministic)
    assert ops.linear(torch.zeros(0, 4), packed).shape == (0, 3)
