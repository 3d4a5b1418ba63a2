"""Bits, pointers and the shared counter of threads, below what numba offers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils

from pagemill_kernels.cpu.jit import inner, intrinsic
from pagemill_kernels.cpu.vector import LLVM_F32, LLVM_I32, LLVM_I64, define, typed_pointer


@intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """The bit pattern of a float32, as int32."""
    return define(types.int32, types.float32)(lambda builder, x: builder.bitcast(x, LLVM_I32))


@intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """The float32 whose bit pattern is the low half of an int64."""
    return define(types.float32, types.int64)(lambda builder, x: builder.bitcast(builder.trunc(x, LLVM_I32), LLVM_F32))


@intrinsic
def take_next(_typing: Any, address: Any) -> Any:
    """Atomically adds 1 to the int64 at an address and returns what it was: threads share out work items."""

    def emit(builder: Any, where: Any) -> Any:
        return builder.atomic_rmw("add", typed_pointer(builder, where, LLVM_I64), ir.Constant(LLVM_I64, 1), "monotonic")

    return define(types.int64, types.int64)(emit)


@inner
def counters(count):
    """Zeroed counters for `take_next`.

    Not made in a kernel itself: numba turns np.zeros there into a parallel loop, one more start of all threads a call.
    """
    return np.zeros(count, np.int64)


@intrinsic
def pointer(_typing: Any, address: Any) -> Any:
    """A void pointer for `numba.carray`."""
    return define(types.voidptr, types.int64)(lambda builder, value: builder.inttoptr(value, cgutils.voidptr_t))
