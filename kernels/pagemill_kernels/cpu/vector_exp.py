"""The exponential of sixteen lanes, as a polynomial that vectorises (`np.exp` is a call for each element)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np

from pagemill_kernels.cpu.jit import inner, intrinsic
from pagemill_kernels.cpu.vector import LLVM_F32, LLVM_I32, VEC16, call_intrinsic, constant, define, vpeak, vsplat, wide

# exp(r) on [-ln 2 / 2, ln 2 / 2], lowest power first: minimax fit, relative error 2e-9.
_EXP = (
    1.0,
    1.0,
    0.49999991059303284,
    0.16666419804096222,
    0.04166822507977486,
    0.008374815806746483,
    0.0013836845755577087,
)
_LOG2_E = float(np.float32(1.4426950408889634))
_LN2_HIGH = 0.693359375
_LN2_LOW = float(np.float32(-2.12194440e-4))
_EXP_LOWEST = -87.0
_EXP_HIGHEST = 88.37


def _emit_exp(builder: Any, x: Any) -> Any:
    low, high = constant(LLVM_F32, _EXP_LOWEST), constant(LLVM_F32, _EXP_HIGHEST)
    tiny = builder.fcmp_ordered("<", x, low)
    huge = builder.fcmp_ordered(">", x, high)
    clipped = builder.select(huge, high, x)
    clipped = builder.select(tiny, low, clipped)
    whole = call_intrinsic(builder, "llvm.rint", builder.fmul(clipped, constant(LLVM_F32, _LOG2_E)))
    rest = call_intrinsic(builder, "llvm.fmuladd", whole, constant(LLVM_F32, -_LN2_HIGH), clipped)
    rest = call_intrinsic(builder, "llvm.fmuladd", whole, constant(LLVM_F32, -_LN2_LOW), rest)
    poly = constant(LLVM_F32, _EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        poly = call_intrinsic(builder, "llvm.fmuladd", poly, rest, constant(LLVM_F32, coefficient))
    power = builder.shl(builder.fptosi(whole, wide(LLVM_I32)), constant(LLVM_I32, 23))
    scaled = builder.bitcast(builder.add(builder.bitcast(poly, wide(LLVM_I32)), power), wide(LLVM_F32))
    return builder.select(tiny, constant(LLVM_F32, 0.0), builder.select(huge, constant(LLVM_F32, float("inf")), scaled))


@intrinsic
def vexp(_typing: Any, value: Any) -> Any:
    """Lane-wise exp, relative error below 2e-7; 0 below -87, infinite above 88.37."""
    return define(VEC16, VEC16)(_emit_exp)


@inner
def exp1(value):
    """Gives exp of one float32, the same bits as a lane of `vexp`."""
    return vpeak(vexp(vsplat(value)))
