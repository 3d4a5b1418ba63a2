"""What the sampler needs to know of each sequence that draws a token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from pagemill_kernels import ops
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence

Int64s = npt.NDArray[np.int64]

REMEMBERED_PROMPTS = 512
"""Prompts whose sets of ids are kept between steps."""


class SamplingBatches:
    """Builds sampling batches; remembers the set of ids of each penalised prompt, which no step changes."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[int, Int64s] = OrderedDict()

    def build(self, sequences: Sequence[ScheduledSequence]) -> ops.SamplingBatch:
        """One row for each sequence; all of them sample."""
        params = [s.sampling for s in sequences]
        bias = [_bias(s) for s in sequences]
        history = [self._history(s) for s in sequences]
        return ops.SamplingBatch(
            temperature=_floats(p.temperature for p in params),
            top_k=_int32s(p.top_k for p in params),
            top_p=_floats(p.top_p for p in params),
            min_p=_floats(p.min_p for p in params),
            repetition=_floats(p.repetition_penalty for p in params),
            frequency=_floats(p.frequency_penalty for p in params),
            presence=_floats(p.presence_penalty for p in params),
            seeds=torch.from_numpy(np.array([p.seed for p in params], np.uint64).view(np.int64)),
            positions=torch.tensor([s.start + s.count for s in sequences], dtype=torch.int64),
            choice=_int32s(p.choice_index for p in params),
            bias_offsets=_int32s(accumulate((len(ids) for ids, _ in bias), initial=0)),
            bias_ids=_int32s(i for ids, _ in bias for i in ids),
            bias_values=_floats(v for _, values in bias for v in values),
            history_offsets=_int32s(accumulate((len(ids) for ids, _ in history), initial=0)),
            history_ids=_joined([ids for ids, _ in history]),
            history_counts=_joined([counts for _, counts in history]),
        )

    def forget(self) -> None:
        """Drops what is remembered."""
        self._prompts.clear()

    def _history(self, sequence: ScheduledSequence) -> tuple[Int64s, Int64s]:
        """Ids seen and how often the output holds each; empty where no penalty asks."""
        sampling = sequence.sampling
        if not _penalises(sampling):
            return _NONE, _NONE
        ids, counts = np.unique(np.array(sequence.output_ids, np.int64), return_counts=True)
        if sampling.repetition_penalty == 1.0:
            return ids, counts.astype(np.int64)
        others = np.setdiff1d(self._prompt(sequence), ids, assume_unique=True)
        return np.concatenate((ids, others)), np.concatenate((counts, np.zeros(len(others), np.int64)))

    def _prompt(self, sequence: ScheduledSequence) -> Int64s:
        known = self._prompts.get(sequence.key)
        if known is None:
            known = self._prompts[sequence.key] = np.unique(np.array(sequence.prompt_ids, np.int64))
            if len(self._prompts) > REMEMBERED_PROMPTS:
                self._prompts.popitem(last=False)
        else:
            self._prompts.move_to_end(sequence.key)
        return known


_NONE: Int64s = np.zeros(0, np.int64)


def _penalises(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0


def _bias(sequence: ScheduledSequence) -> tuple[list[int], list[float]]:
    """Logit bias, then bans and masked ids at minus infinity; an id may occur in both, the values add up."""
    sampling = sequence.sampling
    barred = (*sampling.banned_token_ids, *sequence.masked_token_ids)
    if not barred and not sampling.logit_bias:
        return [], []
    return [*sampling.logit_bias, *barred], [*sampling.logit_bias.values(), *(float("-inf") for _ in barred)]


def _floats(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float32)


def _int32s(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def _joined(parts: list[Int64s]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int32))
