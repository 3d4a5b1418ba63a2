"""How requests end, and what is reported of them."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_replica.engine.messages import EndReason, Stage
from pagemill_replica.engine.testing import Script


def test_an_idle_step_reports_nothing_and_counts_none(harness: Any) -> None:
    engine = harness()
    report = engine.core.step()
    assert [report.tokens, report.ended, report.stored, report.removed, report.held_blocks] == [[], [], [], [], {}]
    assert report.stats.steps == 0
    assert not engine.core.has_work


def test_max_tokens_end_a_request(harness: Any) -> None:
    engine = harness()
    key = engine.submit([1, 2], 3)
    engine.run()
    ended = engine.requests[key].ended
    assert (ended.reason, ended.stage, ended.matched_token_id) == (EndReason.MAX_TOKENS, Stage.DECODE, None)
    assert len(engine.requests[key].tokens) == 3


def test_a_full_context_ends_a_request(harness: Any) -> None:
    engine = harness(context=8)
    key = engine.submit([1, 2], 100)
    engine.run()
    assert engine.reason(key) is EndReason.CONTEXT_FULL
    assert len(engine.requests[key].tokens) == 6


@pytest.mark.parametrize(
    ("field", "reason"), [("stop_token_ids", EndReason.STOP_TOKEN), ("end_of_text_ids", EndReason.END_OF_TEXT)]
)
@pytest.mark.parametrize("at", [0, 4])
def test_a_stopping_token_ends_a_request_and_is_reported(harness: Any, field: str, reason: EndReason, at: int) -> None:
    engine = harness()
    free = engine.submit([1, 2], 8, seed=3)
    engine.run()
    token = engine.requests[free].tokens[at]
    cut = engine.requests[free].tokens.index(token)
    key = engine.submit([1, 2], 8, seed=3, **{field: (63, token)})
    engine.run()
    request = engine.requests[key]
    assert request.tokens == engine.requests[free].tokens[: cut + 1]
    assert (request.ended.reason, request.ended.matched_token_id) == (reason, token)


def test_end_of_text_wins_over_a_stop_token_and_both_over_max_tokens(harness: Any) -> None:
    engine = harness()
    first = engine.expected(engine.submit([1, 2], 1, seed=3), 1)[0]
    both = engine.submit([1, 2], 1, seed=3, stop_token_ids=(first,), end_of_text_ids=(first,))
    stop = engine.submit([1, 2], 1, seed=3, stop_token_ids=(first,))
    engine.run()
    assert engine.reason(both) is EndReason.END_OF_TEXT
    assert engine.reason(stop) is EndReason.STOP_TOKEN


@pytest.mark.parametrize("minimum", [1, 3, 8])
def test_nothing_stops_before_min_tokens(harness: Any, minimum: int) -> None:
    # Every id but one stops, so that the very first token after the minimum does.
    engine = harness(script=Script(vocab=4))
    key = engine.submit([1], 20, min_tokens=minimum, stop_token_ids=(0, 1), end_of_text_ids=(2,))
    engine.run()
    request = engine.requests[key]
    assert request.tokens[:minimum] == [3] * minimum
    assert all(t == 3 for t in request.tokens[minimum:-1])
    assert request.ended.reason in (EndReason.STOP_TOKEN, EndReason.END_OF_TEXT)
    masked = [s.masked_token_ids for plan in engine.runner.plans for s in plan.sequences]
    assert masked[:minimum] == [(2, 0, 1)] * minimum
    assert set(masked[minimum:]) == {()}


class TestAbort:
    def test_while_waiting(self, harness: Any) -> None:
        engine = harness(max_running=1)
        running, waiting = engine.submit([1], 9), engine.submit([2], 9)
        engine.step()
        engine.abort(waiting)
        engine.step()
        ended = engine.requests[waiting].ended
        assert (ended.reason, ended.stage) == (EndReason.ABORTED, Stage.QUEUE)
        engine.run()
        assert engine.reason(running) is EndReason.MAX_TOKENS

    def test_before_its_first_step(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 9)
        engine.abort(key)
        engine.step()
        assert engine.reason(key) is EndReason.ABORTED
        assert not engine.runner.plans

    def test_in_the_middle_of_its_prompt(self, harness: Any) -> None:
        engine = harness(budget=8, blocks=16)
        key = engine.submit(range(30), 9)
        engine.step()
        engine.abort(key)
        report = engine.step()
        assert (report.ended[0].reason, report.ended[0].stage) == (EndReason.ABORTED, Stage.PREFILL)
        assert report.stats.used_blocks == 0

    def test_while_decoding(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 9)
        engine.step()
        engine.abort(key)
        report = engine.step()
        assert (report.ended[0].reason, report.ended[0].stage) == (EndReason.ABORTED, Stage.DECODE)
        assert not report.tokens
        assert report.stats.used_blocks == 0

    def test_while_preempted(self, harness: Any) -> None:
        engine = harness(blocks=4, block_size=2)
        engine.submit([1, 2], 6)
        key = engine.submit([3, 4], 6)
        while not engine.reports or not engine.reports[-1].stats.preemptions:
            engine.step()
        engine.abort(key)
        report = engine.step()
        assert report.ended[0].stage is Stage.DECODE
        assert report.ended[0].preemptions == 1
        engine.run()

    def test_twice_or_after_the_end_or_unknown_is_answered_once(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 1)
        other = engine.submit([2], 9)
        engine.step()
        for k in (key, other, other, 999):
            engine.abort(k)
        engine.run()
        assert engine.reason(key) is EndReason.MAX_TOKENS
        assert engine.reason(other) is EndReason.ABORTED

    def test_all(self, harness: Any) -> None:
        engine = harness(max_running=2)
        keys = [engine.submit([k + 1], 9) for k in range(4)]
        engine.step()
        engine.core.abort_all()
        engine.step()
        assert {engine.reason(k) for k in keys} == {EndReason.ABORTED}

    def test_and_submitted_again_in_a_loop_ends_every_one(self, harness: Any) -> None:
        engine = harness()
        keys = []
        for k in range(50):
            keys.append(engine.submit([1, 2, 3, 4, 5], 9, seed=7))
            if k % 3:
                engine.step()
            engine.abort(keys[-1])
        engine.run()
        assert {engine.reason(k) for k in keys} == {EndReason.ABORTED}


class TestTimeout:
    def test_in_the_queue(self, harness: Any) -> None:
        engine = harness(max_running=1)
        engine.submit([1], 20)
        key = engine.submit([2], 5, time_left=2.0)
        engine.step()
        engine.clock.now += 2.0
        engine.step()
        ended = engine.requests[key].ended
        assert (ended.reason, ended.stage) == (EndReason.TIMEOUT, Stage.QUEUE)
        assert ended.timing.queue == 2.0
        assert ended.timing.prefill == ended.timing.decode == 0.0
        engine.run()

    def test_in_prefill(self, harness: Any) -> None:
        engine = harness(budget=8, blocks=16)
        key = engine.submit(range(30), 5, time_left=2.0)
        engine.clock.now += 0.5
        engine.step()
        engine.clock.now += 1.5
        engine.step()
        ended = engine.requests[key].ended
        assert (ended.reason, ended.stage) == (EndReason.TIMEOUT, Stage.PREFILL)
        assert (ended.timing.queue, ended.timing.prefill) == (0.5, 1.5)

    def test_in_decode(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 20, time_left=2.0)
        engine.step()
        engine.clock.now += 1.0
        engine.step()
        engine.clock.now += 1.0
        assert not engine.step().tokens
        ended = engine.requests[key].ended
        assert (ended.reason, ended.stage) == (EndReason.TIMEOUT, Stage.DECODE)
        assert ended.timing.decode == 2.0

    def test_not_a_moment_early(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 20, time_left=2.0)
        engine.clock.now += 1.999
        engine.step()
        assert engine.reason(key) is None
        engine.run()
        assert engine.reason(key) is EndReason.MAX_TOKENS

    def test_time_that_is_up_already_costs_no_step(self, harness: Any) -> None:
        engine = harness()
        key = engine.submit([1], 20, time_left=-1.0)
        engine.step()
        assert engine.reason(key) is EndReason.TIMEOUT
        assert not engine.runner.plans

    def test_deadlines_of_ended_requests_are_forgotten(self, harness: Any) -> None:
        engine = harness()
        for _ in range(500):
            engine.submit([1], 1, time_left=1e6)
            engine.run()
        assert len(engine.core._deadlines) <= 65


class TestFailure:
    def test_a_step_that_raises_fails_its_requests_and_no_other(self, harness: Any) -> None:
        engine = harness(max_running=1)
        hit, waiting = engine.submit([1, 2], 5), engine.submit([3], 2)
        engine.step()
        engine.runner.errors = [RuntimeError("device lost")]
        engine.step()
        ended = engine.requests[hit].ended
        assert (ended.reason, ended.message) == (EndReason.FAILED, "RuntimeError: device lost")
        assert engine.core.failed_steps == 1
        engine.run()
        assert engine.reason(waiting) is EndReason.MAX_TOKENS
        assert engine.core.failed_steps == 0

    def test_blocks_of_a_failed_step_are_never_found(self, harness: Any) -> None:
        engine = harness()
        engine.runner.errors = [RuntimeError("no")]
        engine.submit(range(12), 2)
        engine.step()
        assert not engine.cache
        again = engine.submit(range(12), 2)
        engine.run()
        assert engine.requests[again].cached == 0

    @pytest.mark.parametrize("drawn", [[], [None], [5, 5]])
    def test_an_answer_against_the_plan_fails_the_step(
        self, harness: Any, monkeypatch: pytest.MonkeyPatch, drawn: list[int | None]
    ) -> None:
        engine = harness()
        key = engine.submit([1], 2)
        monkeypatch.setattr(engine.runner, "execute", lambda plan: drawn)
        engine.core.step()
        assert engine.core.failed_steps == 1
        assert key not in engine.core._sequences
        engine.core.check()


class TestContinuation:
    def test_goes_on_where_the_other_left_off(self, harness: Any) -> None:
        engine = harness()
        whole = engine.submit([1, 2, 3], 10)
        engine.run()
        answer = engine.requests[whole].tokens
        rest = engine.submit([1, 2, 3], 10, output=answer[:6], seed=whole)
        engine.run()
        assert engine.requests[rest].tokens == answer[6:]
        assert engine.reason(rest) is EndReason.MAX_TOKENS

    @pytest.mark.parametrize("cut", [1, 4, 5, 6, 9])
    def test_replayed_output_counts_for_penalties_and_minimum(self, harness: Any, cut: int) -> None:
        engine = harness()
        answer = engine.alone([1, 2, 3], 10, seed=1)
        (stop,) = {engine.alone([1, 2, 3], 11, seed=1)[-1]} - set(answer)
        rest = engine.submit([1, 2, 3], 20, output=answer[:cut], seed=1, min_tokens=5, stop_token_ids=(stop,))
        engine.step()
        (scheduled,) = engine.runner.plans[0].sequences
        assert scheduled.output_ids[:cut] == answer[:cut]
        assert bool(scheduled.masked_token_ids) == (cut < 5)
        engine.run()
        assert engine.requests[rest].tokens == [*answer[cut:], stop]
        assert engine.reason(rest) is EndReason.STOP_TOKEN

    @pytest.mark.parametrize(
        ("stop", "reason", "matched"),
        [
            pytest.param({"max_tokens": 2}, EndReason.MAX_TOKENS, None, id="max tokens"),
            pytest.param({"max_tokens": 9, "stop_token_ids": (6,)}, EndReason.STOP_TOKEN, 6, id="stop token"),
            pytest.param({"max_tokens": 9, "end_of_text_ids": (6,)}, EndReason.END_OF_TEXT, 6, id="end of text"),
            pytest.param({"max_tokens": 99, "context": 5}, EndReason.CONTEXT_FULL, None, id="context"),
        ],
    )
    def test_a_tail_that_has_ended_already_ends_without_a_step(
        self, harness: Any, stop: dict[str, Any], reason: EndReason, matched: int | None
    ) -> None:
        engine = harness(context=stop.pop("context", 64))
        key = engine.submit([1, 2, 3], output=[5, 6], **stop)
        report = engine.step()
        assert not engine.runner.plans
        assert not report.tokens
        assert (report.ended[0].reason, report.ended[0].matched_token_id) == (reason, matched)
        assert report.ended[0].key == key


def test_a_first_token_after_a_preemption_is_not_the_first_again(harness: Any) -> None:
    engine = harness(blocks=4, block_size=2)
    engine.submit([1, 2], 6)
    key = engine.submit([3, 4], 6)
    while not engine.reports or not engine.reports[-1].stats.preemptions:
        engine.clock.now += 1.0
        engine.step()
    engine.clock.now += 100.0
    engine.run()
    timing = engine.requests[key].ended.timing
    assert timing.prefill == 0.0
    assert timing.decode > 100.0


def test_timing_adds_up(harness: Any) -> None:
    engine = harness(budget=8, blocks=16)
    key = engine.submit(range(12), 3)
    engine.clock.now += 1.0
    engine.step()
    engine.clock.now += 2.0
    engine.step()
    engine.clock.now += 4.0
    engine.step()
    engine.clock.now += 8.0
    engine.step()
    timing = engine.requests[key].ended.timing
    assert (timing.queue, timing.prefill, timing.decode) == (1.0, 2.0, 12.0)


def test_held_blocks_are_told_when_they_change(harness: Any) -> None:
    engine = harness(block_size=4)
    key = engine.submit([1, 2, 3], 8)
    assert engine.step().held_blocks == {key: 1}
    assert engine.step().held_blocks == {}
    assert engine.step().held_blocks == {key: 2}
    engine.run()


def test_a_refused_message_is_answered_and_a_live_key_is_not(harness: Any) -> None:
    engine = harness()
    key = engine.submit([1], 3)
    engine.core.refuse(key, "no")
    engine.core.refuse(77, "unreadable")
    report = engine.core.step()
    assert [(e.key, e.reason, e.message) for e in report.ended] == [(77, EndReason.FAILED, "unreadable")]


def test_a_decode_step_hands_over_what_it_has_and_copies_no_history(harness: Any) -> None:
    engine = harness(blocks=16)
    key = engine.submit(range(30), 20)
    for _ in range(6):
        engine.step()
    first, second = (plan.sequences[0] for plan in engine.runner.plans[-2:])
    assert first.block_table is second.block_table
    assert first.output_ids is second.output_ids
    assert second.prompt_ids is engine.requests[key].submit.prompt_ids
    assert second.count == 1
    engine.run()


def test_the_request_as_submitted_is_left_alone(harness: Any) -> None:
    engine = harness()
    engine.submit([1, 2], 1)
    engine.run()
    first = engine.requests[1].tokens[0]
    key = engine.submit([1, 2], 5, output=[first], seed=1)
    message = engine.requests[key].submit
    engine.run()
    assert (message.prompt_ids, message.output_ids) == ([1, 2], [first])
