"""Random bits of the sampler: Philox4x32-10 and the Gumbel noise made from its words.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The functions take int64
torch tensors or numpy arrays whose values are unsigned 32-bit words. Every backend must give the same bits: the
noise uses float32 multiplies and adds that are rounded one by one (no fused multiply-add).
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
PURPOSE_DRAW = 0
"""Fourth counter word of the draw of a token; other uses of a seed take other numbers."""

LOG_POLYNOMIAL = (
    0.3333331048488617,
    -0.24999986588954926,
    0.20002146065235138,
    -0.16669213771820068,
    0.14220009744167328,
    -0.12385592609643936,
    0.11865249276161194,
    -0.11780519038438797,
    0.06920595467090607,
)
"""(log1p(f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1], lowest power first; minimax fit, error 8e-10."""
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440e-4
"""ln 2 in two float32 parts; the first has few bits, so that its product with an exponent is exact."""
SQRT_HALF_BITS = 0x3F3504F3
"""Bit pattern of float32 sqrt(1/2)."""
SQRT_HALF_25 = 23726566
"""sqrt(1/2) * 2^25, rounded down."""

_MASK = 0xFFFFFFFF


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four output words for a counter and key of 32-bit words (broadcast together)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The 64-bit product may wrap into the sign bit; its bits are right all the same.
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & _MASK, (k1 + KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def draw_words(seed: Tensor, position: Tensor, choice: Tensor, ids: Tensor) -> Tensor:
    """The word of each vocabulary id: int64 tensors that broadcast together -> int64 words in [0, 2^32).

    Key = the seed's 64 bits; counter = (position, id >> 2, choice, purpose); id & 3 picks the output word.
    """
    zero = torch.zeros_like(seed + position + choice + ids)
    counter = ((position & _MASK) + zero, (ids >> 2) + zero, (choice & _MASK) + zero, zero + PURPOSE_DRAW)
    words = torch.stack(philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK)))
    return torch.gather(words, 0, ((ids & 3) + zero)[None])[0]


def _log(f: Tensor, exponent: Tensor) -> Tensor:
    """log((1 + f) * 2^exponent) in float32 for f in [sqrt(1/2) - 1, sqrt(2) - 1]."""
    square = f * f
    poly = torch.full_like(f, LOG_POLYNOMIAL[-1])
    for coefficient in reversed(LOG_POLYNOMIAL[:-1]):
        poly = poly * f
        poly = poly + coefficient
    tail = (poly * f) * square
    tail = tail + exponent * LN2_LOW
    tail = tail - square * 0.5
    return (f + tail) + exponent * LN2_HIGH


def gumbel(words: Tensor) -> Tensor:
    """-log(-log(u)) in float32 with u = ((word >> 8) + 0.5) * 2^-24; between -2.86 and 17.33.

    u has 25 bits, one more than float32 holds, so that 1 + f is taken apart in integers, where it is exact.
    """
    top = words >> 8
    double = (2 * top).clamp_min(1).to(torch.float32)
    shift = 24 - ((double.view(torch.int32).to(torch.int64) >> 23) - 127)
    scaled = (2 * top + 1) << shift
    low = scaled < SQRT_HALF_25
    offset = torch.where(low, 2 * scaled, scaled) - (1 << 25)
    f = offset.to(torch.float32) * 2.0**-25
    waiting = -_log(f, -(shift + low).to(torch.float32))
    bits = waiting.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1.0
    return -_log(f, exponent.to(torch.float32))
