"""Which of a row's candidates top-k and top-p keep, without a sort.

Candidates are scaled logits x <= 0, the largest of them 0. The bit pattern of -x rises as x falls, so that a radix
selection over it, eleven then ten then ten bits, finds the last value kept; what ties with it is kept from the lowest
id up. For top-p the digits' histograms hold probability mass instead of counts.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import math

import numpy as np

from pagemill_kernels.cpu.addresses import bits_of
from pagemill_kernels.cpu.jit import inner, int64
from pagemill_kernels.cpu.vector import vload, vstore
from pagemill_kernels.cpu.vector_exp import vexp

LANES = 16
F32 = np.float32(0)
DIGITS = 2048
_SHIFTS = (20, 10, 0)
_WIDTHS = (11, 10, 10)


@inner
def key_of(scaled):
    """An integer that rises as a scaled logit (at most 0) falls."""
    return int64(bits_of(scaled)) & 0x7FFFFFFF


@inner
def _keep(ids, scaled, count, last, ties):
    """Moves to the front, in order, what is above the last key, and the first `ties` that equal it."""
    kept = 0
    for i in range(count):
        key = key_of(scaled[i])
        if key > last or (key == last and ties == 0):
            continue
        if key == last:
            ties -= 1
        ids[kept] = ids[i]
        scaled[kept] = scaled[i]
        kept += 1
    return kept


@inner
def keep_top_k(ids, scaled, count, k):
    """Keeps the k largest of `count` candidates in place, ids rising; returns how many there are."""
    if k >= count:
        return count
    histogram = np.empty(DIGITS, np.int64)
    prefix = int64(0)
    wanted = k
    for level in range(3):
        shift = _SHIFTS[level]
        width = _WIDTHS[level]
        histogram[: 1 << width] = 0
        for i in range(count):
            key = key_of(scaled[i])
            if key >> (shift + width) == prefix:
                histogram[(key >> shift) & ((1 << width) - 1)] += 1
        digit = 0
        while histogram[digit] < wanted:
            wanted -= histogram[digit]
            digit += 1
        prefix = prefix << width | digit
    return _keep(ids, scaled, count, prefix, wanted)


@inner
def fill_masses(scaled, count, masses):
    """The exp of each candidate; the buffers are padded to whole vectors."""
    source = scaled.ctypes.data
    to = masses.ctypes.data
    for i in range(0, count, LANES):
        vstore(to + i * 4, vexp(vload(source + i * 4, F32)), F32)


@inner
def keep_top_p(ids, scaled, masses, count, p):
    """Keeps the smallest set of largest candidates whose mass reaches p of all, at least one; in place."""
    fill_masses(scaled, count, masses)
    total = 0.0
    for i in range(count):
        total += masses[i]
    target = p * total
    histogram = np.empty(DIGITS, np.float64)
    members = np.empty(DIGITS, np.int64)
    prefix = int64(0)
    reached = 0.0
    mass = 0.0
    tied = 0
    for level in range(3):
        shift = _SHIFTS[level]
        width = _WIDTHS[level]
        histogram[: 1 << width] = 0.0
        members[: 1 << width] = 0
        for i in range(count):
            key = key_of(scaled[i])
            if key >> (shift + width) == prefix:
                digit = (key >> shift) & ((1 << width) - 1)
                histogram[digit] += masses[i]
                members[digit] += 1
        # Sums in another order may fall short of the target by rounding: the last digit with members is the end.
        last = (1 << width) - 1
        while members[last] == 0:
            last -= 1
        digit = 0
        while digit < last and (members[digit] == 0 or reached + histogram[digit] < target):
            reached += histogram[digit]
            digit += 1
        mass = histogram[digit]
        tied = members[digit]
        prefix = prefix << width | digit
    each = mass / tied
    ties = tied
    if each > 0.0:
        ties = min(tied, max(1, int64(math.ceil((target - reached) / each))))
    return _keep(ids, scaled, count, prefix, ties)


@inner
def log_floor(min_p):
    """The least scaled logit that min-p keeps; the largest logit, 0, is kept whatever min_p is."""
    return min(math.log(min_p), 0.0)


@inner
def keep_min_p(ids, scaled, count, min_p):
    """Keeps candidates of at least min_p times the largest's probability, in place."""
    lowest = log_floor(min_p)
    kept = 0
    for i in range(count):
        if scaled[i] >= lowest:
            ids[kept] = ids[i]
            scaled[kept] = scaled[i]
            kept += 1
    return kept
