"""Steps that take every path of model and sampler once, so that no request waits for a compiler."""

from __future__ import annotations

from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan

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
