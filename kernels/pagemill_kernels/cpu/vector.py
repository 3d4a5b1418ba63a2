"""Sixteen float32 lanes as a numba value, with loads and stores by address.

Numba vectorises simple loops but keeps no block of accumulators in registers. These intrinsics do: `Vec16` is LLVM's
<16 x float>, which becomes one AVX-512 register, two AVX or four NEON registers. Addresses are int64 byte addresses.
They keep nothing alive: numba frees an array after its last use, so that an address is taken in the function that an
array is passed to, never where it is made.

A `tag` argument names the storage type by its numba type, so that one kernel source compiles per storage type:
float32 is float32, uint16 is bfloat16 (as bits) and int16 is float16 (as bits).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from pagemill_kernels.cpu.jit import intrinsic

LANES = 16

LLVM_F32 = ir.FloatType()
LLVM_HALF = ir.HalfType()
LLVM_I16, LLVM_I32, LLVM_I64 = (ir.IntType(bits) for bits in (16, 32, 64))


def wide(element: ir.Type) -> ir.Type:
    """The LLVM vector of sixteen elements."""
    return ir.VectorType(element, LANES)


def constant(element: ir.Type, value: float) -> ir.Constant:
    """The same number in every lane."""
    return ir.Constant(wide(element), [value] * LANES)


class Vec16Type(types.Type):
    """Numba's type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Vec16")


VEC16 = Vec16Type()


@register_model(Vec16Type)
class _Vec16Model(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, wide(LLVM_F32))


def define(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """An intrinsic of fixed argument types from a function (builder, *llvm values) -> llvm value."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            made = emit(builder, *values)
            return _context.get_dummy_value() if result is types.void else made

        return result(*arguments), codegen

    return decorate


def typed_pointer(builder: Any, address: Any, element: ir.Type) -> Any:
    """An address as an LLVM pointer."""
    return builder.inttoptr(address, element.as_pointer())


def _load(builder: Any, address: Any, element: ir.Type, align: int) -> Any:
    loaded = builder.load(typed_pointer(builder, address, element))
    loaded.align = align
    return loaded


def call_intrinsic(builder: Any, name: str, *values: Any) -> Any:
    """Calls an LLVM intrinsic on vectors of sixteen float32."""
    signature = ir.FunctionType(wide(LLVM_F32), [wide(LLVM_F32)] * len(values))
    function = cgutils.get_or_insert_function(builder.module, signature, f"{name}.v{LANES}f32")
    return builder.call(function, values)


def splat(builder: Any, scalar: Any) -> Any:
    """A scalar in every lane."""
    seed = builder.insert_element(ir.Constant(wide(scalar.type), ir.Undefined), scalar, ir.Constant(LLVM_I32, 0))
    return builder.shuffle_vector(seed, ir.Constant(wide(scalar.type), ir.Undefined), constant(LLVM_I32, 0))


def _from_bfloat16(builder: Any, bits: Any) -> Any:
    if isinstance(bits.type, ir.VectorType):
        high = builder.shl(builder.zext(bits, wide(LLVM_I32)), constant(LLVM_I32, 16))
        return builder.bitcast(high, wide(LLVM_F32))
    high = builder.shl(builder.zext(bits, LLVM_I32), ir.Constant(LLVM_I32, 16))
    return builder.bitcast(high, LLVM_F32)


def _to_bfloat16(builder: Any, value: Any) -> Any:
    """Rounds to nearest, ties to even; a NaN stays one."""
    vector = isinstance(value.type, ir.VectorType)

    def const(number: int) -> Any:
        return constant(LLVM_I32, number) if vector else ir.Constant(LLVM_I32, number)

    bits = builder.bitcast(value, wide(LLVM_I32) if vector else LLVM_I32)
    odd = builder.and_(builder.lshr(bits, const(16)), const(1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, const(0x7FFF))), const(16))
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(nan, const(0x7FC0), rounded), wide(LLVM_I16) if vector else LLVM_I16)


def _load_tagged(builder: Any, address: Any, tag: Any, lanes: int) -> Any:
    def shape(element: ir.Type) -> ir.Type:
        return wide(element) if lanes > 1 else element

    if tag == types.float32:
        return _load(builder, address, shape(LLVM_F32), 4)
    if tag == types.uint16:
        return _from_bfloat16(builder, _load(builder, address, shape(LLVM_I16), 2))
    return builder.fpext(_load(builder, address, shape(LLVM_HALF), 2), shape(LLVM_F32))


def _store_tagged(builder: Any, address: Any, value: Any, tag: Any) -> None:
    if tag == types.uint16:
        value = _to_bfloat16(builder, value)
    elif tag == types.int16:
        value = builder.fptrunc(value, wide(LLVM_HALF) if isinstance(value.type, ir.VectorType) else LLVM_HALF)
    stored = builder.store(value, typed_pointer(builder, address, value.type))
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
    return define(VEC16, types.float32)(splat)


@intrinsic
def vadd(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a + b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fadd(x, y))


@intrinsic
def vsub(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a - b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fsub(x, y))


@intrinsic
def vmul(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a * b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fmul(x, y))


@intrinsic
def vdiv(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise a / b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.fdiv(x, y))


@intrinsic
def vmax(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise maximum; of a NaN and a number, b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))


@intrinsic
def vmin(_typing: Any, a: Any, b: Any) -> Any:
    """Lane-wise minimum; of a NaN and a number, b."""
    return define(VEC16, VEC16, VEC16)(lambda builder, x, y: builder.select(builder.fcmp_ordered("<", x, y), x, y))


@intrinsic
def vfma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Lane-wise a * b + c, fused where the processor can: the same choice in every kernel of one machine."""

    def emit(builder: Any, x: Any, y: Any, z: Any) -> Any:
        return call_intrinsic(builder, "llvm.fmuladd", x, y, z)

    return define(VEC16, VEC16, VEC16, VEC16)(emit)


@intrinsic
def vkeep(_typing: Any, value: Any, first: Any, last: Any, other: Any) -> Any:
    """Lanes in [first, last) of value, the scalar `other` elsewhere."""

    def emit(builder: Any, vector: Any, low: Any, high: Any, filler: Any) -> Any:
        lanes = ir.Constant(wide(LLVM_I64), list(range(LANES)))
        inside = builder.and_(
            builder.icmp_signed(">=", lanes, splat(builder, low)),
            builder.icmp_signed("<", lanes, splat(builder, high)),
        )
        return builder.select(inside, vector, splat(builder, filler))

    return define(VEC16, VEC16, types.int64, types.int64, types.float32)(emit)


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Halves the vector until one lane is left: a fixed tree, the same on every processor."""
    width = LANES
    while width > 1:
        width //= 2
        blank = ir.Constant(vector.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                vector, blank, ir.Constant(ir.VectorType(LLVM_I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        )
        vector = combine(low, high)
    return builder.extract_element(vector, ir.Constant(LLVM_I32, 0))


@intrinsic
def vsum(_typing: Any, value: Any) -> Any:
    """Sum of the lanes, as a fixed tree."""
    return define(types.float32, VEC16)(lambda builder, x: _fold(builder, x, builder.fadd))


@intrinsic
def vpeak(_typing: Any, value: Any) -> Any:
    """Largest lane."""

    def emit(builder: Any, vector: Any) -> Any:
        return _fold(builder, vector, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return define(types.float32, VEC16)(emit)
