"""Reads logits from a runner, for comparisons with an oracle."""

from __future__ import annotations

import torch

from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.runner import CpuRunner


def last_logits(runner: CpuRunner, prompts: list[list[int]]) -> torch.Tensor:
    """All prompts in one step: their last positions' logits, float32 [n, vocab]."""
    plan, block = [], 0
    for key, ids in enumerate(prompts):
        table = list(range(block, block + -(-len(ids) // runner.block_size)))
        block += len(table)
        plan.append(ScheduledSequence(key, ids, 0, table, True, Sampling(temperature=0.0), ids, []))
    return runner.logits(StepPlan(plan))
