"""What a sequence asks of the sampler, as one row of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch

from pagemill_kernels import ops
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence
from pagemill_replica.runner.sampling import REMEMBERED_PROMPTS, SamplingBatches

Share = Callable[..., ScheduledSequence]
BANNED = float("-inf")
REPEATED = Sampling(repetition_penalty=1.5)


def _build(*sequences: ScheduledSequence) -> ops.SamplingBatch:
    return SamplingBatches().build(sequences)


def _lists(offsets: torch.Tensor, *values: torch.Tensor) -> list[list[tuple[float, ...]]]:
    """Each row's entries of a ragged list."""
    entries = list(zip(*(v.tolist() for v in values), strict=True))
    bounds = offsets.tolist()
    return [entries[first:last] for first, last in itertools.pairwise(bounds)]


def _histories(batch: ops.SamplingBatch) -> list[dict[float, float]]:
    return [dict(row) for row in _lists(batch.history_offsets, batch.history_ids, batch.history_counts)]


def test_each_knob_has_its_own_place(share: Share) -> None:
    sampling = Sampling(
        temperature=0.25,
        top_k=3,
        top_p=0.5,
        min_p=0.125,
        repetition_penalty=1.25,
        frequency_penalty=0.75,
        presence_penalty=-0.5,
        seed=11,
        choice_index=2,
    )
    batch = _build(share([1], sampling=sampling), share([1], sampling=Sampling()))
    got = {name: getattr(batch, name).tolist() for name in ("temperature", "top_k", "top_p", "min_p", "choice")}
    assert got == {
        "temperature": [0.25, 1.0],
        "top_k": [3, 0],
        "top_p": [0.5, 1.0],
        "min_p": [0.125, 0.0],
        "choice": [2, 0],
    }
    assert batch.repetition.tolist() == [1.25, 1.0]
    assert batch.frequency.tolist() == [0.75, 0.0]
    assert batch.presence.tolist() == [-0.5, 0.0]
    assert batch.seeds.tolist() == [11, 0]


@pytest.mark.parametrize(("seed", "bits"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_a_seed_keeps_all_its_bits(share: Share, seed: int, bits: int) -> None:
    assert _build(share([1], sampling=Sampling(seed=seed))).seeds.tolist() == [bits]


def test_the_position_is_that_of_the_token_to_draw_however_the_prompt_was_cut(share: Share) -> None:
    whole, rest, decode = share(range(9)), share([7, 8], start=7), share([8], start=8)
    assert _build(whole, rest, decode).positions.tolist() == [9, 9, 9]


def test_bias_bans_and_masks_are_one_list_and_bans_win(share: Share) -> None:
    biased = Sampling(temperature=0.0, logit_bias={4: 100.0, 2: 1.5}, banned_token_ids=(4, 5))
    batch = _build(share([1]), share([1], sampling=biased, masked=(6,)), share([1], masked=(0,)))
    rows = _lists(batch.bias_offsets, batch.bias_ids, batch.bias_values)
    assert rows == [[], [(4, 100.0), (2, 1.5), (4, BANNED), (5, BANNED), (6, BANNED)], [(0, BANNED)]]
    assert ops.sample(torch.zeros(3, 8), batch).tolist() == [0, 2, 1]


def test_without_penalties_no_history_is_made(share: Share) -> None:
    assert _histories(_build(share([1], prompt=[1, 2], output=[3]))) == [{}]


@pytest.mark.parametrize("sampling", [Sampling(frequency_penalty=0.5), Sampling(presence_penalty=0.5)])
def test_frequency_and_presence_look_at_the_output_alone(share: Share, sampling: Sampling) -> None:
    batch = _build(share([1], sampling=sampling, prompt=[1, 2, 2], output=[3, 2, 3]))
    assert _histories(batch) == [{3: 2, 2: 1}]


def test_repetition_looks_at_the_prompt_too(share: Share) -> None:
    batch = _build(share([1], sampling=REPEATED, prompt=[1, 2, 2], output=[3, 2, 3]))
    assert _histories(batch) == [{3: 2, 2: 1, 1: 0}]


def test_ids_of_a_history_are_unique(share: Share) -> None:
    batch = _build(share([1], sampling=REPEATED, prompt=[5, 5, 6], output=[6, 6, 5]))
    assert sorted(batch.history_ids.tolist()) == [5, 6]


def test_rows_of_histories_do_not_mix(share: Share) -> None:
    batch = _build(
        share([1], key=1, sampling=REPEATED, prompt=[1]),
        share([1], key=2, prompt=[7]),
        share([1], key=3, sampling=REPEATED, prompt=[2], output=[3]),
    )
    assert _histories(batch) == [{1: 0}, {}, {2: 0, 3: 1}]


def test_a_prompt_is_remembered_by_its_key_and_the_output_is_not(share: Share) -> None:
    batches = SamplingBatches()
    batches.build([share([1], key=4, sampling=REPEATED, prompt=[1, 2])])
    later = batches.build([share([1], key=4, sampling=REPEATED, prompt=[1, 2], output=[9])])
    assert _histories(later) == [{9: 1, 1: 0, 2: 0}]
    other = batches.build([share([1], key=5, sampling=REPEATED, prompt=[3])])
    assert _histories(other) == [{3: 0}]
    batches.forget()
    assert _histories(batches.build([share([1], key=4, sampling=REPEATED, prompt=[8])])) == [{8: 0}]


def test_what_is_remembered_is_bounded_and_the_least_used_goes_first(share: Share) -> None:
    batches = SamplingBatches()

    def histories(keys: Sequence[int], prompt: list[int]) -> list[dict[float, float]]:
        shares = [share([1], key=key, sampling=REPEATED, prompt=prompt) for key in keys]
        return _histories(batches.build(shares))

    histories(range(REMEMBERED_PROMPTS), [1])
    histories([0], [1])
    histories([REMEMBERED_PROMPTS], [1])
    # Key 1 was forgotten, so that its prompt is read again; key 0 was used since, and its is not.
    assert histories([1, 0], [2]) == [{2: 0}, {1: 0}]


def test_types_are_those_that_the_operator_takes(share: Share) -> None:
    busy = Sampling(repetition_penalty=1.1, logit_bias={1: 1.0})
    for sequences in ([share([1])], [share([1], sampling=busy, prompt=[1], output=[2])]):
        batch = _build(*sequences)
        assert ops.sample(torch.zeros(1, 8), batch).shape == (1,)
