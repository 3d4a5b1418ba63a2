"""The sampler's random bits and noise in numba: the same bits as `pagemill_kernels.philox`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels import philox
from pagemill_kernels.cpu.addresses import bits_of, float_of
from pagemill_kernels.cpu.jit import float32, inner, int64, uint64

_MULTIPLY_0, _MULTIPLY_1 = (np.uint64(m) for m in philox.MULTIPLIERS)
_KEY_0, _KEY_1 = (np.uint64(k) for k in philox.KEY_STEPS)
_MASK = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_PURPOSE = np.uint64(philox.PURPOSE_DRAW)
_ROUNDS = philox.ROUNDS

_P = tuple(np.float32(c) for c in philox.LOG_POLYNOMIAL)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7, _P8 = _P
_HALF = np.float32(0.5)
_ONE = np.float32(1)
_LN2_HIGH = np.float32(philox.LN2_HIGH)
_LN2_LOW = np.float32(philox.LN2_LOW)
_UNIT = np.float32(2.0**-25)
_SQRT_HALF_BITS = philox.SQRT_HALF_BITS
_SQRT_HALF_25 = philox.SQRT_HALF_25


@inner
def philox_words(c0, c1, c2, c3, k0, k1):
    """The four words for a counter and key of uint64 values below 2^32."""
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLY_0
        p1 = c2 * _MULTIPLY_1
        c0, c1, c2, c3 = (p1 >> _WORD) ^ c1 ^ k0, p1 & _MASK, (p0 >> _WORD) ^ c3 ^ k1, p0 & _MASK
        k0 = (k0 + _KEY_0) & _MASK
        k1 = (k1 + _KEY_1) & _MASK
    return c0, c1, c2, c3


@inner
def draw_words(seed, position, group, choice):
    """The words of vocabulary ids 4 * group .. 4 * group + 3, for int64 arguments (seed: bit pattern)."""
    key = uint64(seed)
    return philox_words(
        uint64(position) & _MASK, uint64(group) & _MASK, uint64(choice) & _MASK, _PURPOSE, key & _MASK, key >> _WORD
    )


@inner
def fill_words(seed, position, first_group, groups, choice, words):
    """The words of `groups` groups of four ids from a first group on: words [4, at least groups], uint32."""
    key = uint64(seed)
    k0 = key & _MASK
    k1 = key >> _WORD
    c0 = uint64(position) & _MASK
    c2 = uint64(choice) & _MASK
    for i in range(groups):
        w0, w1, w2, w3 = philox_words(c0, uint64(first_group + i), c2, _PURPOSE, k0, k1)
        words[0, i] = w0
        words[1, i] = w1
        words[2, i] = w2
        words[3, i] = w3


@inner
def _log(f, exponent):
    square = f * f
    poly = _P8
    poly = poly * f + _P7
    poly = poly * f + _P6
    poly = poly * f + _P5
    poly = poly * f + _P4
    poly = poly * f + _P3
    poly = poly * f + _P2
    poly = poly * f + _P1
    poly = poly * f + _P0
    tail = (poly * f) * square
    tail = tail + exponent * _LN2_LOW
    tail = tail - square * _HALF
    return (f + tail) + exponent * _LN2_HIGH


@inner
def gumbel(word):
    """-log(-log(u)) of a word (int64 in [0, 2^32)), see `philox.gumbel`."""
    double = int64(word) >> 8 << 1
    shift = 24 - ((int64(bits_of(float32(max(double, 1)))) >> 23) - 127)
    scaled = (double + 1) << shift
    low = int64(scaled < _SQRT_HALF_25)
    f = float32((scaled << low) - (1 << 25)) * _UNIT
    waiting = -_log(f, -float32(shift + low))
    bits = int64(bits_of(waiting))
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = float_of(bits - (exponent << 23)) - _ONE
    return -_log(f, float32(exponent))
