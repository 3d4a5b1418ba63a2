"""Who is computed when, who gives way, and who is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagemill_replica.engine.limits import EngineLimits
from pagemill_replica.engine.messages import EndReason


def shares(engine: Any) -> dict[int, int]:
    """Key to tokens computed in the last step."""
    return {s.key: s.count for s in engine.runner.plans[-1].sequences}


def test_a_long_prompt_is_computed_in_pieces_of_the_budget(harness: Any) -> None:
    engine = harness(budget=8, max_running=8, blocks=16)
    key = engine.submit(range(20), 2)
    engine.step()
    assert shares(engine) == {key: 8}
    engine.step()
    assert shares(engine) == {key: 8}
    assert not engine.requests[key].tokens
    engine.step()
    assert shares(engine) == {key: 4}
    assert len(engine.requests[key].tokens) == 1
    engine.run()


def test_what_is_left_of_the_budget_starts_the_next_request(harness: Any) -> None:
    engine = harness(budget=10, blocks=16)
    first = engine.submit([1] * 6)
    second = engine.submit([2] * 6)
    engine.step()
    assert shares(engine) == {first: 6, second: 4}
    engine.run()


def test_every_running_stream_gets_a_token_in_each_step_whatever_else_is_long(harness: Any) -> None:
    engine = harness(budget=8, blocks=64, block_size=4, context=128)
    long_first = engine.submit(range(60), 30)
    engine.step()
    streams = [engine.submit([k], 40) for k in range(3)]
    engine.submit([9] * 60, 30)
    while not all(engine.requests[k].tokens for k in streams):
        engine.step()
    assert engine.requests[long_first].ended is None
    engine.submit([8] * 50, 2)
    while any(engine.reason(k) is None for k in streams):
        before = {k: len(engine.requests[k].tokens) for k in streams if engine.reason(k) is None}
        engine.step()
        assert all(len(engine.requests[k].tokens) == n + 1 for k, n in before.items())
    engine.run()


def test_a_long_prompt_admitted_earlier_leaves_the_later_ones_their_token(harness: Any) -> None:
    engine = harness(budget=8, blocks=64, context=128)
    short = engine.submit([1], 40, priority=0)
    engine.step()
    engine.submit(range(60), 4, priority=5)
    for _ in range(7):
        engine.step()
        assert shares(engine)[short] == 1
    engine.run()


def test_waiting_requests_start_by_priority_then_arrival(harness: Any) -> None:
    engine = harness(max_running=1)
    keys = [engine.submit([k + 1], 1, priority=p) for k, p in enumerate([0, 2, 0, 2, 1])]
    started = []
    for _ in keys:
        engine.step()
        started += list(shares(engine))
    assert started == [keys[1], keys[3], keys[4], keys[0], keys[2]]
    engine.run()


def test_no_more_run_at_once_than_allowed(harness: Any) -> None:
    engine = harness(max_running=2)
    for k in range(5):
        engine.submit([k + 1], 3)
    stats = engine.step().stats
    assert (stats.running, stats.waiting) == (2, 3)
    engine.run()


def test_the_newest_gives_way_and_is_the_next_to_return(harness: Any) -> None:
    engine = harness(blocks=4, block_size=2, budget=16)
    old = engine.submit([1, 2], 5)
    new = engine.submit([3, 4], 5)
    engine.step()
    later = engine.submit([5, 6], 5)
    while not engine.reports[-1].stats.preemptions:
        engine.step()
    assert set(shares(engine)) == {old}
    engine.run()
    order = [e.key for report in engine.reports for e in report.ended]
    assert order == [old, new, later]
    assert [engine.requests[k].ended.preemptions for k in (old, new, later)] == [0, 1, 0]


def test_the_lowest_priority_gives_way_before_the_newest(harness: Any) -> None:
    engine = harness(blocks=4, block_size=2)
    low = engine.submit([1, 2], 5, priority=-1)
    engine.step()
    high = engine.submit([3, 4], 5)
    engine.run()
    assert engine.requests[low].ended.preemptions == 1
    assert engine.requests[high].ended.preemptions == 0


def test_nothing_is_admitted_in_a_step_that_preempted(harness: Any) -> None:
    engine = harness(blocks=5, block_size=2)
    engine.submit([1, 2], 7)
    engine.submit([3, 4], 7)
    engine.submit([5], 1)
    preempted = 0
    while engine.core.has_work:
        waiting = engine.reports[-1].stats.waiting if engine.reports else 3
        stats = engine.step().stats
        if stats.preemptions > preempted:
            assert stats.waiting > waiting
        preempted = stats.preemptions
    assert preempted


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "why"),
    [
        pytest.param(30, 3, "do not fit a KV cache of 32", id="prompt and output exceed the pool"),
        pytest.param(40, 1, "do not fit a KV cache of 32", id="the prompt alone exceeds the pool"),
        pytest.param(64, 1, "leave no room in a context of 64", id="the prompt fills the context"),
        pytest.param(0, 1, "the prompt is empty", id="no prompt"),
        pytest.param(1, 0, "max_tokens must be at least 1", id="no output"),
    ],
)
def test_what_can_never_run_is_refused_at_once_and_the_next_runs(
    harness: Any, prompt: int, max_tokens: int, why: str
) -> None:
    engine = harness(blocks=8, block_size=4, context=64)
    bad = engine.submit([1] * prompt, max_tokens)
    good = engine.submit([2], 1)
    engine.step()
    assert engine.reason(bad) is EndReason.REJECTED
    assert why in engine.requests[bad].ended.message
    assert engine.reason(good) is EndReason.MAX_TOKENS


def test_what_just_fits_the_empty_pool_runs(harness: Any) -> None:
    engine = harness(blocks=8, block_size=4, context=64)
    exact = engine.submit([1] * 29, 3)
    other = engine.submit([2] * 29, 3)
    engine.run()
    assert engine.reason(exact) is engine.reason(other) is EndReason.MAX_TOKENS


@pytest.mark.parametrize(
    ("field", "ids"),
    [("prompt", {"prompt": [64]}), ("output", {"output": [64]}), ("stop", {"stop_token_ids": (-1,)})],
)
def test_a_token_the_model_does_not_have_fails_its_own_request_alone(
    harness: Any, field: str, ids: dict[str, Any]
) -> None:
    engine = harness()
    good = engine.submit([1], 3)
    bad = engine.submit(**{"prompt": [1], "max_tokens": 3, **ids})
    engine.run()
    assert engine.reason(good) is EndReason.MAX_TOKENS
    assert engine.reason(bad) is EndReason.REJECTED
    assert field in engine.requests[bad].ended.message


@pytest.mark.parametrize("watermark", [0.0, 0.01, 0.1])
def test_preemptions_of_one_request_are_bounded(harness: Any, watermark: float) -> None:
    blocks, size = 64, 2
    engine = harness(blocks=blocks, block_size=size, budget=64, max_running=64, context=128, watermark=watermark)
    keys = [engine.submit([k, k + 1, k + 2], 100) for k in range(12)]
    engine.run()
    preemptions = [engine.requests[k].ended.preemptions for k in keys]
    # Everything that the more important ones can grow by, in units of the watermark.
    growth = len(keys) * math.ceil(103 / size) / max(1, int(blocks * watermark))
    assert 0 < max(preemptions) <= 2 + math.log2(growth)


def test_a_request_waits_for_headroom_unless_nobody_can_come_to_need_it(harness: Any) -> None:
    engine = harness(blocks=10, block_size=2, watermark=0.4)
    engine.submit([1] * 7, 13)  # 4 blocks, may grow to 10
    engine.step()
    waiting = engine.submit([2] * 5, 9)  # takes 3 of the 6 idle blocks and leaves fewer than the watermark of 4
    assert engine.step().stats.waiting == 1
    engine.run()
    assert engine.requests[waiting].ended.preemptions == 0

    engine = harness(blocks=10, block_size=2, watermark=0.4)
    engine.submit([1] * 13, 2)  # 7 blocks, and never more
    engine.step()
    short = engine.submit([2] * 3, 1)
    engine.step()
    assert engine.reason(short) is EndReason.MAX_TOKENS


def test_a_blocked_request_starts_once_a_running_one_has_computed_its_prefix(harness: Any) -> None:
    engine = harness(blocks=10, block_size=2, budget=6, max_running=4)
    first = engine.submit(range(14), 4)
    second = engine.submit(range(14), 4)
    for _ in range(2):
        engine.step()
        assert shares(engine).keys() == {first}
    while second not in shares(engine):
        engine.step()
    assert engine.reason(first) is None
    engine.run()


def test_a_key_in_use_is_an_error_that_leaves_its_holder_alone(harness: Any) -> None:
    engine = harness()
    key = engine.submit([1], 3)
    with pytest.raises(ValueError, match="is live"):
        engine.core.submit(engine.requests[key].submit)
    engine.run()
    assert engine.reason(key) is EndReason.MAX_TOKENS


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_context_tokens", 1), ("max_running", 0), ("token_budget", 255), ("watermark", 1.0), ("watermark", -0.1)],
)
def test_impossible_limits_name_the_field(field: str, value: float) -> None:
    settings: dict[str, Any] = {"max_context_tokens": 8192, field: value}
    with pytest.raises(ValueError, match=field):
        EngineLimits(**settings)


def test_a_leaked_block_rejects_instead_of_waiting_for_ever(harness: Any) -> None:
    engine = harness(blocks=2, block_size=4)
    key, small = engine.submit([1] * 6, 2), engine.submit([1], 1)
    engine.core._kv.pool.allocate(1)
    report = engine.core.step()
    assert [(e.key, e.reason) for e in report.ended] == [(key, EndReason.REJECTED), (small, EndReason.MAX_TOKENS)]


def test_a_sequence_that_loses_its_last_block_to_a_leak_is_rejected_in_the_end(harness: Any) -> None:
    engine = harness(blocks=2, block_size=4)
    key = engine.submit([1] * 3, 4)
    engine.step()
    engine.core._kv.pool.allocate(1)
    ended = [e for _ in range(5) for e in engine.core.step().ended]
    assert [(e.key, e.reason) for e in ended] == [(key, EndReason.REJECTED)]
