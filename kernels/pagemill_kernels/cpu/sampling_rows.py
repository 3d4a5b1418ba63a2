"""The sampler's row in numba: `ops.sample` states the order and the ties."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import math

import numpy as np

from pagemill_kernels.cpu.addresses import counters, pointer, take_next
from pagemill_kernels.cpu.jit import carray, float32, inner, int64, kernel, prange
from pagemill_kernels.cpu.noise import draw_words, fill_words, gumbel
from pagemill_kernels.cpu.sampling_edits import (
    LARGEST,
    NEGATIVE,
    ZERO,
    apply_bias,
    apply_penalties,
    clean,
    list_is_inside,
    lowest_allowed,
)
from pagemill_kernels.cpu.selection import fill_masses, keep_min_p, keep_top_k, keep_top_p, log_floor
from pagemill_kernels.cpu.vector import load, vdiv, vload, vmax, vmin, vpeak, vsplat, vstore, vsub

LANES = 16
F32 = np.float32(0)
ONE = np.float32(1)
NEGLIGIBLE = np.float32(-32)
"""Scaled logits below this hold less mass, all ids together, than the last bit of a top_p below 1."""
GROUPS = 256
"""Groups of four ids whose random words are made at a time."""
# Places in `arguments`: the logits and sizes, then the addresses of the batch's fields in their order.
LOGITS, ROW_BYTES, ROWS, VOCAB, ITEM, OUT, BIASES, HISTORIES = range(8)
TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION, FREQUENCY, PRESENCE, SEEDS, POSITIONS, CHOICE = range(8, 18)
BIAS_OFFSETS, BIAS_IDS, BIAS_VALUES, HISTORY_OFFSETS, HISTORY_IDS, HISTORY_COUNTS = range(18, 24)

_ALL_BITS = np.uint32(0xFFFFFFFF)
_EIGHT = np.uint32(8)
_HALF = np.float32(0.5)
_UNIT = np.float32(2.0**-24)
WRONG = np.int64(-2)
"""In place of the id of a row whose lists of ids reach outside the batch or the vocabulary."""
SERIAL_WORK = 65_536
"""Logits in all below which starting threads costs more than it saves."""


@inner
def _read_logits(logits, vocab, item, out, tag):
    full = vocab // LANES * LANES
    at = out.ctypes.data
    for i in range(0, full, LANES):
        value = vmax(vload(logits + i * item, tag), vsplat(NEGATIVE))
        vstore(at + i * 4, vmin(value, vsplat(LARGEST)), F32)
    for i in range(full, vocab):
        out[i] = clean(load(logits + i * item, tag))
    out[vocab:] = NEGATIVE


@inner
def _largest(values, size):
    """(largest value, lowest id that has it); size is a whole number of vectors, -inf past the vocabulary."""
    at = values.ctypes.data
    top = vsplat(NEGATIVE)
    for i in range(0, size, LANES):
        top = vmax(vload(at + i * 4, F32), top)
    peak = vpeak(top)
    for i in range(size):
        if values[i] == peak:
            return peak, int64(i)
    return peak, int64(0)


@inner
def _scale(values, size, top, temperature):
    at = values.ctypes.data
    for i in range(0, size, LANES):
        vstore(at + i * 4, vdiv(vsub(vload(at + i * 4, F32), vsplat(top)), vsplat(temperature)), F32)


@inner
def _noise_of(token, seed, position, choice):
    words = draw_words(seed, position, token >> 2, choice)
    return gumbel(words[token & 3])


@inner
def _may_win(word, mass, limit):
    """Whether noise of this word (uint32) could lift a candidate of this mass = exp(scaled) to the best score.

    Noise is at least t only where -log(u) <= exp(-t), and 1 - u <= -log(u): so 1 - u <= mass * exp(-best) is needed.
    It spares almost every candidate the two logarithms. Like u, 1 - u is made of the word's upper 24 bits alone.
    """
    return (float32((word ^ _ALL_BITS) >> _EIGHT) + _HALF) * _UNIT <= mass * limit


@inner
def _limit(best):
    """The exp(-best), with a margin for rounding."""
    return float32(math.exp(-best) * 1.001)


@inner
def _draw_listed(ids, scaled, count, seed, position, choice):
    """The candidate of the largest scaled logit + noise; ids rise, so that the first of equals is the lowest."""
    best = NEGATIVE
    winner = ids[0]
    group = int64(-1)
    words = draw_words(seed, position, int64(0), choice)
    for i in range(count):
        token = int64(ids[i])
        if token >> 2 != group:
            group = token >> 2
            words = draw_words(seed, position, group, choice)
        score = scaled[i] + gumbel(words[token & 3])
        if score > best:
            best = score
            winner = ids[i]
    return int64(winner)


@inner
def _draw_any(values, vocab, first, floor, seed, position, choice, masses):
    """The same over the whole vocabulary; `first` has the largest logit, below the floor nothing is drawn."""
    fill_masses(values, vocab, masses)
    words = np.empty((4, GROUPS), np.uint32)
    best = _noise_of(first, seed, position, choice)
    winner = first
    limit = _limit(best)
    for start in range(0, vocab, 4 * GROUPS):
        size = min(4 * GROUPS, vocab - start)
        fill_words(seed, position, start >> 2, (size + 3) >> 2, choice, words)
        for i in range(size):
            token = start + i
            word = words[i & 3, i >> 2]
            if not _may_win(word, masses[token], limit) or values[token] < floor:
                continue
            score = values[token] + gumbel(word)
            if score > best or (score == best and token < winner):
                best = score
                winner = int64(token)
                limit = _limit(best)
    return winner


@inner
def _candidates(values, vocab, floor, ids, scaled):
    """Lists the ids whose scaled logit is above the floor."""
    count = 0
    for i in range(vocab):
        ids[count] = i
        scaled[count] = values[i]
        count += int64(values[i] > floor)
    return count


@inner
def _sample_row(values, vocab, temperature, top_k, top_p, min_p, seed, position, choice, ids, scaled, masses):
    """Draws from edited logits, not all of them -inf; `values` is overwritten."""
    size = len(values)
    peak, first = _largest(values, size)
    if not temperature > ZERO:
        return first
    _scale(values, size, peak, temperature)
    limited = 0 < top_k < vocab
    if not limited and not top_p < ONE:
        floor = log_floor(float(min_p)) if min_p > ZERO else -math.inf
        return _draw_any(values, vocab, first, floor, seed, position, choice, masses)
    count = _candidates(values, vocab, NEGATIVE if limited else NEGLIGIBLE, ids, scaled)
    if limited:
        count = keep_top_k(ids, scaled, count, int64(top_k))
    if top_p < ONE:
        count = keep_top_p(ids, scaled, masses, count, float(top_p))
    if min_p > ZERO:
        count = keep_min_p(ids, scaled, count, float(min_p))
    return _draw_listed(ids, scaled, count, seed, position, choice)


@inner
def _floats(arguments, name):
    return carray(pointer(arguments[name]), (arguments[ROWS],), np.float32)


@inner
def _ints(arguments, name, size):
    return carray(pointer(arguments[name]), (size,), np.int32)


@inner
def _longs(arguments, name):
    return carray(pointer(arguments[name]), (arguments[ROWS],), np.int64)


@inner
def _edit_row(arguments, row, values):
    """Bias, bans and penalties; -1, or the id to give: the lowest that is not banned where nothing is left.

    WRONG for lists that reach outside the batch or the vocabulary: nothing is written then.
    """
    rows, vocab = arguments[ROWS], arguments[VOCAB]
    bias_bounds, seen_bounds = _ints(arguments, BIAS_OFFSETS, rows + 1), _ints(arguments, HISTORY_OFFSETS, rows + 1)
    bias_ids, seen = _ints(arguments, BIAS_IDS, arguments[BIASES]), _ints(arguments, HISTORY_IDS, arguments[HISTORIES])
    if not (list_is_inside(bias_bounds, row, bias_ids, vocab) and list_is_inside(seen_bounds, row, seen, vocab)):
        return WRONG
    first, last = bias_bounds[row], bias_bounds[row + 1]
    amounts = carray(pointer(arguments[BIAS_VALUES]), (arguments[BIASES],), np.float32)[first:last]
    apply_bias(values, bias_ids[first:last], amounts)
    start, end = seen_bounds[row], seen_bounds[row + 1]
    counts = _ints(arguments, HISTORY_COUNTS, arguments[HISTORIES])[start:end]
    repetition, frequency = _floats(arguments, REPETITION)[row], _floats(arguments, FREQUENCY)[row]
    apply_penalties(values, seen[start:end], counts, repetition, frequency, _floats(arguments, PRESENCE)[row])
    if _largest(values, len(values))[0] == NEGATIVE:
        return lowest_allowed(vocab, bias_ids[first:last], amounts)
    return int64(-1)


@inner
def _share(arguments, counter, tag):
    """One thread's share of the rows."""
    rows, vocab, item = arguments[ROWS], arguments[VOCAB], arguments[ITEM]
    size = -(-vocab // LANES) * LANES
    values = np.empty(size, np.float32)
    scaled = np.empty(size, np.float32)
    masses = np.empty(size, np.float32)
    ids = np.empty(size, np.int32)
    out = _longs(arguments, OUT)
    while True:
        row = take_next(counter.ctypes.data)
        if row >= rows:
            return
        _read_logits(arguments[LOGITS] + row * arguments[ROW_BYTES], vocab, item, values, tag)
        settled = _edit_row(arguments, row, values)
        if settled != -1:
            out[row] = settled
            continue
        out[row] = _sample_row(
            values,
            vocab,
            _floats(arguments, TEMPERATURE)[row],
            int64(_ints(arguments, TOP_K, rows)[row]),
            _floats(arguments, TOP_P)[row],
            _floats(arguments, MIN_P)[row],
            _longs(arguments, SEEDS)[row],
            _longs(arguments, POSITIONS)[row],
            int64(_ints(arguments, CHOICE, rows)[row]),
            ids,
            scaled,
            masses,
        )


@kernel
def sample_rows(arguments, workers, tag):
    """One id per row, or WRONG; arguments are the addresses and sizes that this module names, int64."""
    counter = counters(1)
    if workers == 1 or arguments[ROWS] == 1 or arguments[ROWS] * arguments[VOCAB] < SERIAL_WORK:
        _share(arguments, counter, tag)
    else:
        for _worker in prange(min(workers, arguments[ROWS])):
            _share(arguments, counter, tag)
