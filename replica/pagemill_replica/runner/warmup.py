"""Runs every path of a step once, so that no request waits for a compiler."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemill_kernels import ops
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.runner.cpu import CpuRunner

GREEDY = Sampling(temperature=0.0)
EVERYTHING = Sampling(
    temperature=0.8,
    top_k=20,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias={0: -1.0},
    banned_token_ids=(0,),
)
PLAIN = Sampling(temperature=1.0)
"""A draw with neither filter nor penalty."""


def warm_up(runner: CpuRunner, progress: Callable[[str, float], None]) -> None:
    """Compiles the kernels, then runs prefill, a mixed step and decode through model and sampler.

    The KV cache must be unused; the blocks that were written are zeroed again.
    """
    config = runner.decoder.config
    ops.warm_up(
        runner.kv.layout,
        (config.hidden_size, config.intermediate_size),
        runner.decoder.device,
        lambda kernel, fraction: progress(f"kernels: {kernel}", fraction * 0.8),
    )
    plans = warm_up_plans(runner.num_blocks, runner.block_size, runner.max_context)
    for index, plan in enumerate(plans):
        progress("warm-up", 0.8 + 0.2 * index / len(plans))
        runner.execute(plan)
    runner.forget()
    _clear(runner, max(block for plan in plans for s in plan.sequences for block in s.block_table) + 1)
    progress("warm-up", 1.0)


def warm_up_plans(num_blocks: int, block_size: int, max_context: int) -> list[StepPlan]:
    """Steps of up to two sequences: both prefill, one goes on by a chunk while one decodes, both decode."""
    count = min(2, num_blocks)
    blocks = min(3, num_blocks // count)
    tables = [list(range(i * blocks, (i + 1) * blocks)) for i in range(count)]
    length = min(blocks * block_size, max_context)
    prompt = max(1, length // 2)
    steps = [(0, prompt, GREEDY), (0, prompt, EVERYTHING)]
    if prompt < length:
        steps += [(prompt, 1, sampling) for sampling in (EVERYTHING, PLAIN, GREEDY)]
    plans = [
        StepPlan([_sequence(i, table, start, tokens, sampling, prompt) for i, table in enumerate(tables)])
        for start, tokens, sampling in steps
    ]
    if count == 2 and prompt + 2 <= length:
        chunk = _sequence(0, tables[0], prompt, 2, GREEDY, prompt)
        plans.append(StepPlan([chunk, _sequence(1, tables[1], prompt, 1, EVERYTHING, prompt)]))
    return plans


def _sequence(
    index: int, table: list[int], start: int, tokens: int, sampling: Sampling, prompt: int
) -> ScheduledSequence:
    return ScheduledSequence(
        key=-1 - index,
        token_ids=[0] * tokens,
        start=start,
        block_table=table,
        samples=True,
        sampling=sampling,
        prompt_ids=[0] * prompt,
        output_ids=[0] * (start + tokens - prompt),
        masked_token_ids=(),
    )


def _clear(runner: CpuRunner, blocks: int) -> None:
    ids = torch.arange(blocks)
    ops.write_blocks(runner.kv, ids, torch.zeros_like(ops.read_blocks(runner.kv, ids)))
