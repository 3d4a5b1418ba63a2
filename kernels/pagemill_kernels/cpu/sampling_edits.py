"""What bias, bans and penalties do to one row of logits, and which id is left where they leave nothing."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np

from pagemill_kernels.cpu.jit import float32, inner, int64

ZERO = np.float32(0)
NEGATIVE = np.float32(-np.inf)
LARGEST = np.float32(np.finfo(np.float32).max)


@inner
def clean(value):
    """NaN as -inf, +inf as the largest float."""
    return min(value, LARGEST) if value == value else NEGATIVE


@inner
def list_is_inside(bounds, row, ids, vocab):
    """Whether a row's part of a ragged list lies within the list, and its ids within the vocabulary."""
    first, last = bounds[row], bounds[row + 1]
    if first < 0 or last < first or last > len(ids):
        return False
    outside = 0
    for i in range(first, last):
        outside += int64(ids[i] < 0 or ids[i] >= vocab)
    return outside == 0


@inner
def apply_bias(values, ids, amounts):
    """Adds each amount to the logit of its id."""
    for i in range(len(ids)):
        values[ids[i]] = clean(values[ids[i]] + amounts[i])


@inner
def apply_penalties(values, ids, counts, repetition, frequency, presence):
    """Lowers the logits of ids that were seen, by how often the output holds them."""
    for i in range(len(ids)):
        value = values[ids[i]]
        value = value / repetition if value > ZERO else value * repetition
        value = value - frequency * float32(counts[i])
        if counts[i] > 0:
            value = value - presence
        values[ids[i]] = clean(value)


@inner
def lowest_allowed(vocab, bias_ids, bias_values):
    """The lowest id that no bias of -inf bans, or 0."""
    banned = np.zeros(vocab, np.bool_)
    for i in range(len(bias_ids)):
        if bias_values[i] == NEGATIVE:
            banned[bias_ids[i]] = True
    for i in range(vocab):
        if not banned[i]:
            return int64(i)
    return int64(0)
