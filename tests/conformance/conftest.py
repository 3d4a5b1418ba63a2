"""Drives runners the way the engine does, and lays the same weights before transformers and before us."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pagemill_replica.checkpoint import Checkpoint, open_checkpoint
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.runner import CpuRunner, RunnerOptions, build_runner
from support.fleet import smollm2

GREEDY = Sampling(temperature=0.0)


@dataclass
class _Live:
    key: int
    prompt: list[int]
    table: list[int]
    output: list[int] = field(default_factory=list)
    computed: int = 0

    def step(self, budget: int) -> ScheduledSequence:
        known = self.prompt + self.output
        ids = known[self.computed : self.computed + budget]
        return ScheduledSequence(
            key=self.key,
            token_ids=ids,
            start=self.computed,
            block_table=self.table,
            samples=self.computed + len(ids) == len(known),
            sampling=GREEDY,
            prompt_ids=self.prompt,
            output_ids=self.output,
        )


def run_greedy(runner: CpuRunner, prompts: Sequence[list[int]], new_tokens: int, budget: int) -> list[list[int]]:
    """Greedy outputs of all prompts in one continuous batch: decodes first, then prompt chunks, `budget` tokens a step.

    Blocks are dealt out in random order, so that nothing depends on their being neighbours.
    """
    blocks = list(range(runner.num_blocks))
    random.Random(7).shuffle(blocks)
    deal = iter(blocks)
    live = []
    for key, prompt in enumerate(prompts):
        needed = -(-(len(prompt) + new_tokens) // runner.block_size)
        live.append(_Live(key, list(prompt), list(itertools.islice(deal, needed))))
    while pending := [sequence for sequence in live if len(sequence.output) < new_tokens]:
        pending.sort(key=lambda s: len(s.prompt) + len(s.output) - s.computed)
        left, plan = budget, []
        for sequence in pending:
            if left > 0:
                plan.append(sequence.step(left))
                left -= plan[-1].count
        for step, drawn in zip(plan, runner.execute(StepPlan(plan)), strict=True):
            live[step.key].computed += step.count
            if drawn is not None:
                live[step.key].output.append(drawn)
    return [sequence.output for sequence in live]


@pytest.fixture(name="run_greedy", scope="session")
def run_greedy_fixture() -> Callable[..., list[list[int]]]:
    return run_greedy


@pytest.fixture(scope="session")
def open_runner() -> Callable[..., CpuRunner]:
    def build(path: Path | Checkpoint, **options: object) -> CpuRunner:
        checkpoint = open_checkpoint(path) if isinstance(path, Path) else path
        chosen = {"dtype": "float32", "kv_memory_bytes": 64 << 20, **options}
        return build_runner(checkpoint, RunnerOptions(**chosen), lambda _stage, _fraction: None)

    return build


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    return smollm2()
