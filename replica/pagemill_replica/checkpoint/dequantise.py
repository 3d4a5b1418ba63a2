"""Numbers from their stored form, in float32.

Block formats are GGML's: 32 numbers share a half-precision scale d (and minimum m); a 4-bit block keeps its first 16
numbers in the low halves of 16 bytes, the last 16 in the high halves. Q8_0: d*q. Q4_0: d*(q - 8). Q4_1: d*q + m.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pagemill_replica.checkpoint.tensors import Bytes, Encoding

Floats = npt.NDArray[np.float32]


def to_float32(encoding: Encoding, rows: Bytes) -> Floats:
    """Rows of bytes uint8 [r, row_bytes] as float32 [r, numbers in a row]."""
    return _DECODERS[encoding.name](np.ascontiguousarray(rows))


def _float32(rows: Bytes) -> Floats:
    return rows.view("<f4").astype(np.float32)


def _float16(rows: Bytes) -> Floats:
    return rows.view("<f2").astype(np.float32)


def _bfloat16(rows: Bytes) -> Floats:
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(rows: Bytes) -> Floats:
    blocks = rows.reshape(len(rows), -1, 34)
    numbers = blocks[..., 2:].view(np.int8).astype(np.float32)
    return (_half(blocks, 0) * numbers).reshape(len(rows), -1)


def _q4_0(rows: Bytes) -> Floats:
    blocks = rows.reshape(len(rows), -1, 18)
    numbers = (_nibbles(blocks[..., 2:]).astype(np.int8) - np.int8(8)).astype(np.float32)
    return (_half(blocks, 0) * numbers).reshape(len(rows), -1)


def _q4_1(rows: Bytes) -> Floats:
    blocks = rows.reshape(len(rows), -1, 20)
    numbers = _nibbles(blocks[..., 4:]).astype(np.float32)
    return (_half(blocks, 0) * numbers + _half(blocks, 2)).reshape(len(rows), -1)


def _half(blocks: Bytes, at: int) -> Floats:
    """The half-precision number at byte `at` of each block, float32 [r, blocks, 1]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low halves, then high halves: uint8 [..., 16] to [..., 32]."""
    return np.concatenate((packed & np.uint8(0x0F), packed >> np.uint8(4)), axis=-1)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _float32,
    "F16": _float16,
    "BF16": _bfloat16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}
