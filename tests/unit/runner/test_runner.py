"""From settings to a runner over a tiny random model, and what a runner promises of its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagemill_kernels import ops
from pagemill_replica.checkpoint import Checkpoint
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.runner import CpuRunner, RunnerOptions, SettingError, build_runner
from pagemill_replica.runner.build import MAX_BLOCK_SIZE
from pagemill_replica.runner.dtypes import has_native_bf16, resolve_dtype
from pagemill_replica.runner.memory import step_bytes
from pagemill_replica.runner.threads import resolve_threads

Share = Callable[..., ScheduledSequence]
Open = Callable[..., CpuRunner]


@pytest.mark.parametrize(
    ("options", "flag", "reason"),
    [
        ({"device": "cuda"}, "--device", "cuda is not offered; choose cpu"),
        ({"dtype": "float16"}, "--dtype", "float16 is not offered on the CPU"),
        ({"block_size": 0}, "--block-size", f"it must be 1 to {MAX_BLOCK_SIZE}"),
        ({"block_size": MAX_BLOCK_SIZE + 1}, "--block-size", f"it must be 1 to {MAX_BLOCK_SIZE}"),
        ({"threads": 0}, "--threads", "must be 1 to"),
        ({"threads": 100_000}, "--threads", "100000; it must be 1 to"),
        ({"token_budget": 0}, "--token-budget", "at least 1"),
        ({"max_running": 0}, "--max-running", "at least 1"),
        ({"kv_memory_bytes": 0}, "--kv-memory", "at least 1"),
        ({"kv_memory_bytes": 1}, "--kv-memory", "1 B hold no block of 16 tokens"),
        ({"kv_memory_bytes": 1 << 60}, "--kv-memory", "ask for less"),
        ({"max_context": 129}, "--max-context", "the model takes 1 to 128 tokens"),
        ({"max_context": 0}, "--max-context", "the model takes 1 to 128 tokens"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_can(
    open_tiny: Open, options: dict[str, Any], flag: str, reason: str
) -> None:
    with pytest.raises(SettingError) as error:
        open_tiny(**options)
    assert error.value.flag == flag
    assert reason in error.value.reason


def test_what_a_runner_says_of_itself(open_tiny: Open) -> None:
    runner = open_tiny(kv_memory_bytes=100_000, max_context=100, deterministic=True)
    per_block = ops.kv_bytes_per_block(runner.decoder.kv_layout(16))
    assert runner.num_blocks == 100_000 // per_block
    assert runner.kv_bytes == runner.plan.kv_bytes == runner.num_blocks * per_block
    assert (runner.block_size, runner.max_context, runner.vocab_size) == (16, 100, 48)
    assert (runner.dtype, runner.device, runner.deterministic) == ("float32", "cpu", True)
    assert runner.max_request_tokens == min(100, 16 * runner.num_blocks)


def test_auto_is_the_type_that_the_processor_has(open_tiny: Open) -> None:
    assert open_tiny(dtype="auto").decoder.dtype == resolve_dtype("auto", has_native_bf16())


def test_threads_are_at_most_a_few_for_each_processor() -> None:
    assert resolve_threads(None, 6) == 6
    assert resolve_threads(24, 6) == 24
    with pytest.raises(SettingError, match=r"^--threads: 25; it must be 1 to 24 where 6 processors are usable$"):
        resolve_threads(25, 6)


def test_threads_are_set_for_torch_and_numba(open_tiny: Open) -> None:
    before = torch.get_num_threads()
    try:
        assert open_tiny(threads=2).threads == torch.get_num_threads() == 2
        assert open_tiny(threads=1).threads == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_progress_rises_to_one(checkpoint: Checkpoint) -> None:
    seen: list[float] = []
    options = RunnerOptions(dtype="float32", kv_memory_bytes=1 << 20, threads=1)
    build_runner(checkpoint, options, lambda _stage, fraction: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_steps_memory_grows_with_budget_and_with_rows_that_draw(checkpoint: Checkpoint) -> None:
    base = step_bytes(checkpoint.config, 100, 10, 4)
    assert step_bytes(checkpoint.config, 101, 10, 4) - base == 4 * (4 * 32 + 2 * (32 + 16) + 3 * 64)
    assert step_bytes(checkpoint.config, 100, 11, 4) - base == 2 * 4 * 48
    # No more rows draw than there are tokens.
    assert step_bytes(checkpoint.config, 100, 1000, 4) == step_bytes(checkpoint.config, 100, 100, 4)


@pytest.mark.parametrize("blocks", [1, 2, 64])
def test_warm_up_leaves_nothing_behind(open_tiny: Open, share: Share, blocks: int) -> None:
    per_block = open_tiny().kv_bytes // open_tiny().num_blocks
    runner = open_tiny(kv_memory_bytes=blocks * per_block)
    seen: list[float] = []
    runner.warm_up(lambda _stage, fraction: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert (ops.read_blocks(runner.kv, torch.arange(blocks)) == 0).all()
    cold = open_tiny(kv_memory_bytes=blocks * per_block)
    plan = StepPlan([share(range(9), table=[0], samples=True)])
    assert torch.equal(runner.logits(plan), cold.logits(plan))


def test_each_sequence_gets_its_own_token_or_none(open_tiny: Open, share: Share) -> None:
    runner = open_tiny(deterministic=True)
    shares = [
        share([1, 2, 3], key=1, table=[0]),
        share([4, 5], key=2, table=[1], samples=True),
        share([6], key=3, table=[2], samples=True),
    ]
    drawn = runner.execute(StepPlan(shares))
    assert drawn[0] is None
    assert [drawn[1:]] == [[runner.execute(StepPlan([s]))[0] for s in shares[1:]]]
    assert runner.execute(StepPlan(shares[:1])) == [None]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_logits_do_not_depend_on_neighbours_or_cuts(open_tiny: Open, share: Share, dtype: str) -> None:
    runner = open_tiny(deterministic=True, dtype=dtype)
    prompt = [(7 * i + 3) % 48 for i in range(37)]
    want = runner.logits(StepPlan([share(prompt, table=[0, 1, 2], samples=True)]))
    others = [share([k] * (5 * k + 1), key=10 + k, table=[6 + 2 * k, 7 + 2 * k], samples=k % 2 == 0) for k in range(5)]
    for cuts in ([37], [16, 21], [1, 35, 1], [36, 1]):
        start, logits = 0, torch.empty(0)
        for index, count in enumerate(cuts):
            part = share(prompt[start : start + count], start=start, table=[3, 4, 5], samples=index == len(cuts) - 1)
            logits = runner.logits(StepPlan([part, *others]))
            start += count
        assert torch.equal(logits[:1], want), cuts


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [48]},
        {"tokens": [-1]},
        {"start": 128, "table": range(9)},
        {"start": -1},
        {"table": []},
        {"table": [10**4]},
        {"tokens": []},
    ],
)
def test_a_plan_out_of_bounds_writes_nothing(open_tiny: Open, share: Share, changes: dict[str, Any]) -> None:
    runner = open_tiny()
    good, bad = share([1, 2], table=[0], samples=True), {"tokens": [1], "table": [1], "key": 2, **changes}
    with pytest.raises(ValueError):  # noqa: PT011
        runner.execute(StepPlan([good, share(bad.pop("tokens"), **bad)]))
    assert (ops.read_blocks(runner.kv, torch.arange(runner.num_blocks)) == 0).all()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(logit_bias={48: 1.0}), Sampling(banned_token_ids=(-1,)), Sampling(banned_token_ids=(10**6,))],
)
def test_sampling_ids_outside_the_vocabulary_fail_the_step(open_tiny: Open, share: Share, sampling: Sampling) -> None:
    runner = open_tiny()
    bad = share([1], table=[0], samples=True, sampling=sampling)
    with pytest.raises(ValueError, match=r"\[0, 48\)"):
        runner.execute(StepPlan([bad]))
    good = dataclasses.replace(bad, sampling=Sampling(temperature=0.0))
    assert runner.execute(StepPlan([good])) != [None]
