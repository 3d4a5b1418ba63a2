"""Matrix products on CPUs: oneDNN with pre-packed weights where the processor has the types, our own panels elsewhere.

ATen's plain product packs the weight again at every call, and has no vector path at all for bfloat16 on processors
without AVX-512. `panels` multiplies any storage type in float32 and gives a row the same bits whatever the number of
rows, so that it is also the deterministic form.
"""

from __future__ import annotations

import functools
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from pagemill_kernels.cpu.panels import LANES, multiply
from pagemill_kernels.cpu.storage import TAGS, padded, tag, threads
from pagemill_kernels.types import PackedWeight

_log = logging.getLogger("pagemill.kernels")

PANELS = "panels"
ONEDNN = "onednn"
PLAIN = "plain"
"""Types that neither of the others takes, such as float64."""

_BATCH_HINT = 32


def _onednn_pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT)
    return packed


def _onednn_multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


@functools.cache
def onednn_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed product takes this type here and gives right numbers: a small problem is computed."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 80, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    try:
        packed = _onednn_pack(weight)
        for rows in (1, 3, 33):
            x = torch.randn(rows, 80, generator=generator).to(dtype)
            for added in (None, bias):
                want = F.linear(x.double(), weight.double(), None if added is None else added.double())
                got = _onednn_multiply(x, packed, added).double()
                if not torch.allclose(got, want, rtol=tolerance, atol=tolerance * 10):
                    _log.warning("oneDNN's packed %s product is wrong on this processor and is not used", dtype)
                    return False
    except RuntimeError as error:
        _log.info("oneDNN has no packed %s product on this processor: %s", dtype, str(error).splitlines()[0])
        return False
    return True


def _panels(weight: Tensor) -> Tensor:
    """[out, in] as [panels, in, 16], zeros after the last output."""
    outputs, size = weight.shape
    packed = torch.zeros((padded(outputs) // LANES, size, LANES), dtype=weight.dtype)
    whole = outputs // LANES
    packed[:whole] = weight[: whole * LANES].view(whole, LANES, size).transpose(1, 2)
    if whole * LANES < outputs:
        packed[whole, :, : outputs - whole * LANES] = weight[whole * LANES :].t()
    return packed


def choose_format(dtype: torch.dtype, deterministic: bool) -> str:
    """How weights of a type are packed on this processor."""
    if dtype not in TAGS:
        return PLAIN
    return PANELS if deterministic or not onednn_works(dtype) else ONEDNN


def pack_weight(weight: Tensor, bias: Tensor | None, deterministic: bool) -> PackedWeight:
    """See `ops.pack_weight`."""
    weight = weight.detach()
    bias = None if bias is None else bias.detach().contiguous()
    form = choose_format(weight.dtype, deterministic)
    if form == PLAIN and deterministic:
        raise TypeError(f"no deterministic product of {weight.dtype} weights")
    if bias is not None and form == PANELS:
        # Sums are float32: so is what is added to them, whatever the storage.
        bias = bias.float()
    contiguous = weight.contiguous()
    tensor = {PLAIN: lambda: contiguous, ONEDNN: lambda: _onednn_pack(contiguous), PANELS: lambda: _panels(contiguous)}[
        form
    ]()
    elements = tensor.numel() if form == PANELS else weight.numel()
    nbytes = elements * weight.element_size() + (0 if bias is None else bias.nbytes)
    return PackedWeight(
        out_features=weight.shape[0],
        in_features=weight.shape[1],
        dtype=weight.dtype,
        deterministic=deterministic,
        format=form,
        tensors=(tensor,),
        bias=bias,
        nbytes=nbytes,
    )


def linear(
    x: Tensor, weight: list[Tensor], bias: Tensor | None, out_features: int, form: str, deterministic: bool
) -> Tensor:
    """The declared operator."""
    packed = weight[0]
    if form == ONEDNN:
        return _onednn_multiply(x, packed, bias)
    if form == PLAIN:
        return F.linear(x, packed, bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty((x.shape[0], out_features), dtype=x.dtype)
    multiply(
        x.data_ptr(),
        x.stride(0) * x.itemsize,
        x.shape[0],
        x.shape[1],
        packed.data_ptr(),
        packed.shape[0],
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        out_features,
        x.itemsize,
        threads(),
        tag("product", x),
    )
    return out
