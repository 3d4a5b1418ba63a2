"""Sixteen float32 lanes as a numba value, with loads and stores by address.

Numba vectorises simple loops but keeps no block of accumulators in registers. These intrinsics do: `Vec16` is LLVM's
<16 x float>, which becomes one AVX-512 register, two AVX or four NEON registers. Addresses are int64 byte addresses.

A `tag` argument names the storage type by its numba type, so that one kernel source compiles per storage type:
float32 is float32, uint16 is bfloat16 (as bits) and int16 is float16 (as bits).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from pagemill_kernels.cpu.jit import intrinsic, njit

LANES = 16

_F32 = ir.FloatType()
_HALF = ir.HalfType()
_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))


def _wide(element: ir.Type) -> ir.Type:
    return ir.VectorType(element, LANES)


def _all(element: ir.Type, value: float) -> ir.Constant:
    return ir.Constant(_wide(element), [value] * LANES)


class Vec16Type(types.Type):
    """Numba's type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Vec16")


VEC16 = Vec16Type()


@register_model(Vec16Type)
class _Vec16Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _wide(_F32))


def _define(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic of fixed argument types from a function (builder, *llvm values) -> llvm value."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            made = emit(builder, *values)
            return _context.get_dummy_value() if result is types.void else made

        return result(*arguments), codegen

    return decorate


def _pointer(builder: Any, address: Any, element: ir.Type) -> Any:
    return builder.inttoptr(address, element.as_pointer())


def _load(builder: Any, address: Any, element: ir.Type, align: int) -> Any:
    loaded = builder.load(_pointer(builder, address, element))
    loaded.align = align
    return loaded


def _call(builder: Any, name: str, *values: Any) -> Any:
    """Calls an LLVM intrinsic on vectors of sixteen float32."""
    signature = ir.FunctionType(_wide(_F32), [_wide(_F32)] * len(values))
    function = cgutils.get_or_insert_function(builder.module, signature, f"{name}.v{LANES}f32")
    return builder.call(function, values)


def _splat(builder: Any, scalar: Any) -> Any:
    seed = builder.insert_element(ir.Constant(_wide(scalar.type), ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(seed, ir.Constant(_wide(scalar.type), ir.Undefined), _all(_I32, 0))


def _from_bfloat16(builder: Any, bits: Any) -> Any:
    vector = isinstance(bits.type, ir.VectorType)
    wide, real, shift = (_wide(_I32), _wide(_F32), _all(_I32, 16)) if vector else (_I32, _F32, ir.Constant(_I32, 16))
    return builder.bitcast(builder.shl(builder.zext(bits, wide), shift), real)


def _to_bfloat16(builder: Any, value: Any) -> Any:
    """Rounds to nearest, ties to even; a NaN stays one."""
    vector = isinstance(value.type, ir.VectorType)

    def const(number: int) -> Any:
        return _all(_I32, number) if vector else ir.Constant(_I32, number)

    bits = builder.bitcast(value, _wide(_I32) if vector else _I32)
    odd = builder.and_(builder.lshr(bits, const(16)), const(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, const(0x7FFF))), const(16))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(nan, const(0x7FC0), rounded), _wide(_I16) if vector else _I16)


def _load_tagged(builder: Any, address: Any, tag: Any, lanes: int) -> Any:
    def shape(element: ir.Type) -> ir.Type:
        return _wide(element) if lanes > 1 else element

    if tag == types.float32:
        return _load(builder, address, shape(_F32), 4)
    if tag == types.uint16:
        return _from_bfloat16(builder, _load(builder, address, shape(_I16), 2))
    return builder.fpext(_load(builder, address, shape(_HALF), 2), shape(_F32))


def _store_tagged(builder: Any, address: Any, value: Any, tag: Any) -> None:
    if tag == types.uint16:
        value = _to_bfloat16(builder, value)
    elif tag == types.int16:
        value = builder.fptrunc(value, _wide(_HALF) if isinstance(value.type, ir.VectorType) else _HALF)
    stored = builder.store(value, _pointer(builder, address, value.type))
    stored.align = 4 if tag == types.float32 else 2


_TAGS = (types.float32, types.uint16, types.int16)


def _check_tag(tag: Any) -> None:
    if tag not in _TAGS:
        raise TypeError(f"no storage type for tag {tag}")


@intrinsic
def load(_typing: Any, address: Any, tag: Any) -> Any:
    """One element at an address, as float32."""
    _check_tag(tag)

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _load_tagged(builder, values[0], tag, 1)

    return types.float32(types.int64, tag), codegen


@intrinsic
def store(_typing: Any, address: Any, value: Any, tag: Any) -> Any:
    """Writes one float32, rounded to the storage type."""
    _check_tag(tag)

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        _store_tagged(builder, values[0], values[1], tag)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, tag), codegen


@intrinsic
def vload(_typing: Any, address: Any, tag: Any) -> Any:
    """Sixteen elements at an address."""
    _check_tag(tag)

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _load_tagged(builder, values[0], tag, LANES)

    return VEC16(types.int64, tag), codegen


@intrinsic
def vstore(_typing: Any, address: Any, value: Any, tag: Any) -> Any:
    """Writes sixteen elements, rounded to the storage type."""
    _check_tag(tag)

    def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        _store_tagged(builder, values[0], values[1], tag)
        return context.get_dummy_value()

    return types.void(types.int64, VEC16, tag), codegen


@intrinsic
def vsplat(_typing: Any, value: Any) -> Any:
    """One float32 in every lane."""
    return _define(VEC16, types.float32)(_splat)


@intrinsic
def vadd(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a + b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fadd(x, y))


@intrinsic
def vsub(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a - b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fsub(x, y))


@intrinsic
def vmul(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a * b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fmul(x, y))


@intrinsic
def vdiv(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a / b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fdiv(x, y))


@intrinsic
def vmax(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise maximum; of a NaN and a number, b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@intrinsic
def vmin(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise minimum; of a NaN and a number, b."""
    return _define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.select(builder.fcmp_ordered("<", x, y), x, y))


@intrinsic
def vfma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Lane-wise a * b + c, fused where the processor can: the same choice in every kernel of one machine."""

    def emit(builder: Any, x: Any, y: Any, z: Any) -> Any:
        return _call(builder, "llvm.fmuladd", x, y, z)

    return _define(VEC16, VEC16, VEC16, VEC16)(emit)


@intrinsic
def vkeep(_typing: Any, value: Any, first: Any, last: Any, other: Any) -> Any:
    """Lanes in [first, last) of value, the scalar `other` elsewhere."""

    def emit(builder: Any, vector: Any, low: Any, high: Any, filler: Any) -> Any:
        lanes = ir.Constant(_wide(_I64), list(range(LANES)))
        inside = builder.and_(
            builder.icmp_signed(">=", lanes, _splat(builder, low)),
            builder.icmp_signed("<", lanes, _splat(builder, high)),
        )
        return builder.select(inside, vector, _splat(builder, filler))

    return _define(VEC16, VEC16, types.int64, types.int64, types.float32)(emit)


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Halves the vector until one lane is left: a fixed tree, the same on every processor."""
    width = LANES
    while width > 1:
        width //= 2
        blank = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                vector, blank, ir.Constant(ir.VectorType(_I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic
def vsum(_typing: Any, value: Any) -> Any:
    """Sum of the lanes, as a fixed tree."""
    return _define(types.float32, VEC16)(lambda builder, x: _fold(builder, x, builder.fadd))


@intrinsic
def vpeak(_typing: Any, value: Any) -> Any:
    """Largest lane."""

    def emit(builder: Any, vector: Any) -> Any:
        return _fold(builder, vector, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return _define(types.float32, VEC16)(emit)


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
_EXP_HIGHEST = 88.0


def _emit_exp(builder: Any, x: Any) -> Any:
    low, high = _all(_F32, _EXP_LOWEST), _all(_F32, _EXP_HIGHEST)
    tiny = builder.fcmp_ordered("<", x, low)
    clipped = builder.select(builder.fcmp_ordered("<", x, high), x, high)
    clipped = builder.select(tiny, low, clipped)
    whole = _call(builder, "llvm.rint", builder.fmul(clipped, _all(_F32, _LOG2_E)))
    rest = _call(builder, "llvm.fmuladd", whole, _all(_F32, -_LN2_HIGH), clipped)
    rest = _call(builder, "llvm.fmuladd", whole, _all(_F32, -_LN2_LOW), rest)
    poly = _all(_F32, _EXP[-1])
    for coefficient in reversed(_EXP[:-1]):
        poly = _call(builder, "llvm.fmuladd", poly, rest, _all(_F32, coefficient))
    power = builder.shl(builder.fptosi(whole, _wide(_I32)), _all(_I32, 23))
    scaled = builder.bitcast(builder.add(builder.bitcast(poly, _wide(_I32)), power), _wide(_F32))
    return builder.select(tiny, _all(_F32, 0.0), scaled)


@intrinsic
def vexp(_typing: Any, value: Any) -> Any:
    """Lane-wise exp, relative error below 2e-7; 0 below -87, held at exp(88) above."""
    return _define(VEC16, VEC16)(_emit_exp)


@njit(cache=True)
def exp1(value):
    """Gives exp of one float32, the same bits as a lane of `vexp`."""
    return vpeak(vexp(vsplat(value)))


@intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """The bit pattern of a float32, as int32."""
    return _define(types.int32, types.float32)(lambda builder, x: builder.bitcast(x, _I32))


@intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """The float32 whose bit pattern is the low half of an int64."""
    return _define(types.float32, types.int64)(lambda builder, x: builder.bitcast(builder.trunc(x, _I32), _F32))


@intrinsic
def take_next(_typing: Any, address: Any) -> Any:
    """Atomically adds 1 to the int64 at an address and returns what it was: threads share out work items."""

    def emit(builder: Any, where: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, where, _I64), ir.Constant(_I64, 1), "monotonic")

    return _define(types.int64, types.int64)(emit)


@intrinsic
def _void_pointer(_typing: Any, address: Any) -> Any:
    return _define(types.voidptr, types.int64)(lambda builder, value: builder.inttoptr(value, cgutils.voidptr_t))


@njit(inline="always")
def pointer(address):
    """A void pointer for `numba.carray`."""
    return _void_pointer(address)
