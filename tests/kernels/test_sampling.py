"""The sampler on CPUs: the same ids as the oracle, ties and extremes that are easy to get wrong, the distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagemill_kernels import ops, reference
from pagemill_kernels.cpu.selection import key_of

INF = math.inf
Batch = Callable[..., ops.SamplingBatch]


def _ragged(draw: Any, rows: int, vocab: int, values: Any, *, unique: bool) -> tuple[list[int], list[int], list[Any]]:
    offsets, ids, numbers = [0], [], []
    for _ in range(rows):
        row = draw(st.lists(st.integers(0, vocab - 1), max_size=4, unique=unique))
        ids += row
        numbers += [draw(values) for _ in row]
        offsets.append(len(ids))
    return offsets, ids, numbers


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, dict[str, Any]]:
    rows, vocab = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 5, 16, 17, 40, 200]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn((rows, vocab), generator=generator) * draw(st.sampled_from([0.1, 3.0, 30.0]))
    if draw(st.booleans()):
        logits = logits.round()  # many ties
    for value in draw(st.lists(st.sampled_from([INF, -INF, math.nan, 3.4e38, -3.4e38, 1e-40]), max_size=3)):
        row, column = draw(st.integers(0, rows - 1)), draw(st.integers(0, vocab - 1))
        logits[row, column] = value
    bias = _ragged(draw, rows, vocab, st.sampled_from([-INF, -2.0, 0.5, 100.0]), unique=False)
    history = _ragged(draw, rows, vocab, st.integers(0, 3), unique=True)

    def column(*choices: float) -> list[float]:
        return draw(st.lists(st.sampled_from(choices), min_size=rows, max_size=rows))

    fields = {
        "temperature": column(0.0, 0.01, 0.7, 1.0, 2.0, 1e-38),
        "top_k": column(0, 1, 2, 5, 1000),
        "top_p": column(1.0, 0.95, 0.5, 0.1, 0.0),
        "min_p": column(0.0, 0.0, 0.02, 0.3, 1.0),
        "repetition": column(1.0, 1.3, 0.8),
        "frequency": column(0.0, 0.7, -0.5),
        "presence": column(0.0, 0.4),
        "seeds": draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows)),
        "positions": draw(st.lists(st.integers(0, 2**20), min_size=rows, max_size=rows)),
        "choice": draw(st.lists(st.integers(0, 127), min_size=rows, max_size=rows)),
        "bias_offsets": bias[0],
        "bias_ids": bias[1],
        "bias_values": bias[2],
        "history_offsets": history[0],
        "history_ids": history[1],
        "history_counts": history[2],
    }
    return logits, fields


def _may_differ_by_rounding(logits: Tensor, batch: ops.SamplingBatch, row: int) -> bool:
    """Whether the edge of top-p or min-p lies within float32 rounding of a candidate."""
    adjusted = reference.adjust_logits(logits, batch)[0][row]
    scaled = (adjusted - adjusted.max()) / batch.temperature[row]
    limits = int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
    kept = reference.survivors(scaled, *limits)
    wiggle = 1e-6
    moved = (
        reference.survivors(scaled, limits[0], p, m)
        for p in (limits[1] * (1 - wiggle), limits[1] * (1 + wiggle))
        for m in (limits[2] * (1 - wiggle), limits[2] * (1 + wiggle))
    )
    return any(not torch.equal(kept, other) for other in moved)


@given(case=cases())
@settings(max_examples=400)
def test_draws_what_the_oracle_draws(sampling_batch: Batch, case: tuple[Tensor, dict[str, Any]]) -> None:
    logits, fields = case
    batch = sampling_batch(logits.shape[0], **fields)
    before = logits.clone()
    got, want = ops.sample(logits, batch), reference.sample(logits, batch)
    assert torch.equal(logits, before) or bool(torch.isnan(before).any())
    for row in range(logits.shape[0]):
        assert got[row] == want[row] or _may_differ_by_rounding(logits, batch, row)


def _support(logits: Tensor, sampling_batch: Batch, draws: int = 400, **fields: float) -> set[int]:
    """The ids that many draws from one row give."""
    repeated = logits.expand(draws, -1).contiguous()
    columns = {name: [value] * draws for name, value in fields.items()}
    return set(ops.sample(repeated, sampling_batch(draws, positions=range(draws), **columns)).tolist())


def test_top_k_keeps_exactly_k_and_ties_go_to_the_lower_id(sampling_batch: Batch) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 0.0]])
    assert _support(logits, sampling_batch, top_k=2) == {1, 3}
    assert _support(logits, sampling_batch, top_k=3) == {1, 3, 5}
    assert _support(logits, sampling_batch, top_k=4) == {0, 1, 3, 5}


def test_top_p_keeps_the_smallest_set_and_ties_go_to_the_lower_id(sampling_batch: Batch) -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.1, 0.3, 0.1, 0.1]]))
    assert _support(logits, sampling_batch, top_p=0.25) == {1}
    assert _support(logits, sampling_batch, top_p=0.35) == {1, 3}
    assert _support(logits, sampling_batch, top_p=0.65) == {0, 1, 3}
    assert _support(logits, sampling_batch, top_p=0.75) == {0, 1, 2, 3}
    assert _support(logits, sampling_batch, top_p=0.0) == {1}
    # p is of what top-k left.
    assert _support(logits, sampling_batch, top_p=0.55, top_k=2) == {1, 3}
    assert _support(logits, sampling_batch, top_p=0.45, top_k=2) == {1}


def test_min_p_is_relative_to_the_largest(sampling_batch: Batch) -> None:
    logits = torch.log(torch.tensor([[0.05, 0.5, 0.25, 0.2]]))
    assert _support(logits, sampling_batch, min_p=0.45) == {1, 2}
    assert _support(logits, sampling_batch, min_p=0.05) == {0, 1, 2, 3}
    assert _support(logits, sampling_batch, min_p=1.0) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_the_lowest_of_equal_logits_wins_greedily(sampling_batch: Batch, temperature: float) -> None:
    logits = torch.full((1, 40), -3.0)
    logits[0, [7, 20, 33]] = 5.0
    batch = sampling_batch(1, temperature=[temperature], top_k=[1])
    assert ops.sample(logits, batch).tolist() == [7]


def test_penalties_touch_prompt_and_output_as_they_should(sampling_batch: Batch) -> None:
    logits = torch.tensor([[4.0, 3.0, -1.0, 3.5]])
    history = {"history_offsets": [0, 2], "history_ids": [0, 3], "history_counts": [0, 2]}
    greedy = {"temperature": [0.0]}
    # 4 / 1.3 = 3.08 and 3.5 / 1.3 = 2.7: id 0 was in the prompt only, and repetition reaches it all the same.
    assert ops.sample(logits, sampling_batch(1, repetition=[1.3], **greedy, **history)).tolist() == [0]
    assert ops.sample(logits, sampling_batch(1, repetition=[1.4], **greedy, **history)).tolist() == [1]
    # Frequency and presence reach id 3 alone.
    high = torch.tensor([[2.0, 1.0, -1.0, 3.5]])
    assert ops.sample(high, sampling_batch(1, frequency=[0.7], **greedy, **history)).tolist() == [3]
    assert ops.sample(high, sampling_batch(1, frequency=[0.8], **greedy, **history)).tolist() == [0]
    assert ops.sample(high, sampling_batch(1, presence=[1.6], **greedy, **history)).tolist() == [0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [-INF, math.nan])
def test_rows_with_nothing_left_give_the_lowest_allowed_id(
    sampling_batch: Batch, temperature: float, value: float
) -> None:
    logits = torch.full((3, 20), value)
    batch = sampling_batch(
        3,
        temperature=[temperature] * 3,
        bias_offsets=[0, 0, 2, 22],
        bias_ids=[0, 1, *range(20)],
        bias_values=[-INF] * 22,
    )
    assert ops.sample(logits, batch).tolist() == [0, 2, 0]


def test_banned_ids_are_never_drawn(sampling_batch: Batch) -> None:
    draws, vocab = 300, 12
    logits = torch.zeros(draws, vocab)
    batch = sampling_batch(
        draws,
        bias_offsets=[10 * i for i in range(draws + 1)],
        bias_ids=list(range(10)) * draws,
        bias_values=[-INF] * 10 * draws,
    )
    assert set(ops.sample(logits, batch).tolist()) == {10, 11}


@pytest.mark.parametrize(
    ("fields", "weights"),
    [
        ({}, [0.4, 0.05, 0.25, 0.1, 0.15, 0.05]),
        ({"top_k": 3}, [0.4, 0.0, 0.25, 0.0, 0.15, 0.0]),
        ({"temperature": 0.5}, [0.16, 0.0025, 0.0625, 0.01, 0.0225, 0.0025]),
        ({"top_p": 0.7, "temperature": 2.0}, [0.4**0.5, 0.0, 0.25**0.5, 0.1**0.5, 0.15**0.5, 0.0]),
    ],
)
def test_draws_follow_the_distribution(sampling_batch: Batch, fields: dict[str, float], weights: list[float]) -> None:
    probabilities = np.array([0.4, 0.05, 0.25, 0.1, 0.15, 0.05])
    draws = 20_000
    logits = torch.log(torch.tensor(probabilities, dtype=torch.float32)).repeat(draws, 1)
    columns = {name: [value] * draws for name, value in fields.items()}
    ids = ops.sample(logits, sampling_batch(draws, seeds=[42] * draws, positions=range(draws), **columns))
    counts = np.bincount(ids.numpy(), minlength=6)
    expected = np.array(weights) / sum(weights) * draws
    assert (counts[expected == 0] == 0).all()
    live = expected > 0
    statistic = float((((counts - expected) ** 2)[live] / expected[live]).sum())
    # The 99.9 % point of chi-square with 5 degrees of freedom; the draws are fixed by the seed.
    assert statistic < 20.5


def test_seed_position_and_choice_each_change_the_draw(sampling_batch: Batch) -> None:
    logits = torch.zeros(1, 5000)

    def draw(seed: int, position: int, choice: int) -> int:
        return int(ops.sample(logits, sampling_batch(1, seeds=[seed], positions=[position], choice=[choice])))

    drawn = [draw(1, 1, 0), draw(2, 1, 0), draw(1, 2, 0), draw(1, 1, 1), draw(1 - 2**63, 1, 0)]
    assert len(set(drawn)) == 5
    assert draw(1, 1, 0) == drawn[0]


def test_a_row_draws_the_same_among_others(sampling_batch: Batch, two_threads: None) -> None:
    rows, vocab = 9, 20_000
    logits = torch.randn((rows, vocab), generator=torch.Generator().manual_seed(0)) * 3
    columns = {"top_p": [0.9, 1.0, 0.5] * 3, "top_k": [0, 0, 50] * 3, "min_p": [0.0, 0.1, 0.0] * 3}
    together = ops.sample(logits, sampling_batch(rows, **columns))
    for row in range(rows):
        alone = sampling_batch(1, seeds=[row], **{k: [v[row]] for k, v in columns.items()})
        assert ops.sample(logits[row : row + 1], alone).tolist() == together[row : row + 1].tolist()
    assert torch.equal(together, reference.sample(logits, sampling_batch(rows, **columns)))


@pytest.mark.parametrize(
    ("position", "token", "logit"),
    [(1000, 50101, -16.2673), (1491, 232, -15.0024), (2044, 19813, -15.7554), (2300, 32084, -16.6666)],
)
def test_a_rare_word_lifts_an_unlikely_id_by_a_hair(
    sampling_batch: Batch, position: int, token: int, logit: float
) -> None:
    # Words in the uppermost 2^-21 of their range, found by search: their noise lifts the id just above id 0's score.
    logits = torch.full((1, 60_000), -INF)
    logits[0, [0, token]] = torch.tensor([0.0, logit])
    batch = sampling_batch(1, seeds=[0], positions=[position])
    assert reference.sample(logits, batch).tolist() == [token]
    assert ops.sample(logits, batch).tolist() == [token]


@pytest.mark.parametrize("top_k", [0, 3])
def test_min_p_above_one_leaves_the_largest(sampling_batch: Batch, top_k: int) -> None:
    logits = torch.tensor([[1.0, 0.0, 4.0, 2.0]])
    batch = sampling_batch(1, min_p=[1.5], top_k=[top_k])
    assert ops.sample(logits, batch).tolist() == reference.sample(logits, batch).tolist() == [2]


@pytest.mark.parametrize(
    "fields",
    [
        {"bias_offsets": [0, 0, 1], "bias_ids": [8], "bias_values": [1.0]},
        {"bias_offsets": [0, 0, 1], "bias_ids": [-1], "bias_values": [-INF]},
        {"bias_offsets": [0, 0, 2], "bias_ids": [0], "bias_values": [1.0]},
        {"bias_offsets": [0, 1, 0], "bias_ids": [0], "bias_values": [1.0]},
        {"history_offsets": [0, 0, 1], "history_ids": [2**31 - 1], "history_counts": [1]},
        {"history_offsets": [0, -1, 1], "history_ids": [0], "history_counts": [1]},
    ],
)
def test_ids_outside_the_vocabulary_and_lists_outside_the_batch_are_refused(
    sampling_batch: Batch, fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="of sample"):
        ops.sample(torch.zeros(2, 8), sampling_batch(2, **fields))


def test_no_rows_draw_nothing(sampling_batch: Batch) -> None:
    assert ops.sample(torch.zeros(0, 8), sampling_batch(0)).tolist() == []


def test_half_precision_logits_are_read_as_they_are(sampling_batch: Batch) -> None:
    logits = torch.randn((4, 1000), generator=torch.Generator().manual_seed(0)).bfloat16()
    batch = sampling_batch(4, top_k=[0, 10, 0, 3])
    assert torch.equal(ops.sample(logits, batch), ops.sample(logits.float(), batch))


def test_wrong_types_are_refused(sampling_batch: Batch) -> None:
    with pytest.raises(TypeError, match="argument 0"):
        ops.sample(torch.zeros(2, 8), sampling_batch(3))
    with pytest.raises(TypeError, match="float64"):
        ops.sample(torch.zeros(2, 8).double(), sampling_batch(2))
    with pytest.raises(TypeError, match="argument 12"):
        ops.sample(torch.zeros(1, 8), sampling_batch(1, bias_offsets=[0, 2], bias_ids=[0, 1], bias_values=[1.0]))
    with pytest.raises(ValueError, match="two dimensions"):
        ops.sample(torch.zeros(8), sampling_batch(8))


def test_selection_keys_fall_as_logits_rise() -> None:
    compiled = numba.njit(lambda x: key_of(x))
    scaled = np.array([0.0, -1e-45, -1e-30, -0.5, -1.0, -3e38, -np.inf], np.float32)
    keys = [compiled(value) for value in scaled]
    assert keys == sorted(set(keys))
