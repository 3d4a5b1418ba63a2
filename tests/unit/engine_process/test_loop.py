"""The engine's loop: when it takes messages, what a fault of one request does to the others, when it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NoOpTracer

from pagemill_common.block_hash import BlockHasher
from pagemill_common.telemetry import Meters, Telemetry
from pagemill_replica.engine.core import EngineCore
from pagemill_replica.engine.limits import EngineLimits
from pagemill_replica.engine.messages import Abort, EndReason, Shutdown, StepReport, Submit, ToEngine
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.engine.plan import StepPlan
from pagemill_replica.engine.testing import Script, ScriptedRunner
from pagemill_replica.engine_process.codec import BadFrameError
from pagemill_replica.engine_process.loop import (
    CHECK_SECONDS,
    IDLE_WAIT_SECONDS,
    MAX_FAILED_STEPS,
    EngineBrokenError,
    EngineLoop,
)
from pagemill_replica.engine_process.spans import EngineSpans

FAIL_ID = 9


class Wire:
    """Hands over one batch of messages each time the loop looks, and then the order to leave."""

    def __init__(self, batches: list[list[Any]]) -> None:
        self._batches = batches
        self.waits: list[float] = []
        self.reports: list[StepReport] = []

    def receive(self, wait_seconds: float) -> list[ToEngine | BadFrameError]:
        self.waits.append(wait_seconds)
        return self._batches.pop(0) if self._batches else [Shutdown()]

    def send(self, message: StepReport) -> None:
        self.reports.append(message)

    @property
    def ended(self) -> dict[int, EndReason]:
        pairs = [(end.key, end.reason) for report in self.reports for end in report.ended]
        assert len(dict(pairs)) == len(pairs), "a request ended twice"
        return dict(pairs)

    def tokens(self, key: int) -> int:
        return sum(len(new.token_ids) for report in self.reports for new in report.tokens if new.key == key)


class Noting(ScriptedRunner):
    """Keeps the keys of each step."""

    def __init__(self, script: Script, blocks: int) -> None:
        super().__init__(script, blocks, 4)
        self.steps: list[list[int]] = []

    def execute(self, plan: StepPlan) -> list[int | None]:
        self.steps.append([s.key for s in plan.sequences])
        return super().execute(plan)


class Bench:
    def __init__(self, *batches: list[Any], orphaned: Callable[[], bool] = lambda: False) -> None:
        self.now = 100.0
        self.wire = Wire(list(batches))
        self.runner = Noting(Script(vocab=64, low=10, fail_id=FAIL_ID), 64)
        limits = EngineLimits(max_context_tokens=200, token_budget=64, max_running=8, vocabulary_size=64)
        self.core = EngineCore(self.runner, BlockHasher("aa", "", 4), limits, self._clock)
        spans = EngineSpans(Telemetry(NoOpTracer(), Meters(Resource.create({})), None))
        wire: Any = self.wire
        self.loop = EngineLoop(self.core, wire, spans, orphaned=orphaned, clock=self._clock)

    def _clock(self) -> float:
        return self.now

    def run(self) -> Wire:
        self.loop.run()
        assert self.core.live == 0
        self.core.check()
        return self.wire


def submit(key: int, *, max_tokens: int = 100, prompt: Any = (20, 21, 22)) -> Submit:
    return Submit(key, list(prompt), Sampling(), Stop(max_tokens))


def test_aborted_request_is_in_no_further_step_and_its_blocks_are_back_with_the_next_report() -> None:
    bench = Bench([submit(1, prompt=range(10, 50)), submit(2)], [], [Abort(1)], [])
    wire = bench.run()
    assert bench.runner.steps == [[1, 2], [1, 2], [2], [2]]
    before, after = wire.reports[1], wire.reports[2]
    assert [(end.key, end.reason) for end in after.ended] == [(1, EndReason.ABORTED)]
    assert (before.stats.used_blocks, after.stats.used_blocks) == (11 + 1, 2)
    assert [new.key for new in after.tokens] == [2]


def test_abort_that_comes_with_its_submit_costs_no_step() -> None:
    bench = Bench([submit(1), Abort(1)], [])
    assert bench.run().ended == {1: EndReason.ABORTED}
    assert bench.runner.steps == []


def test_abort_of_what_has_ended_or_never_was_changes_nothing() -> None:
    wire = Bench([submit(1, max_tokens=1)], [Abort(1), Abort(99)], []).run()
    assert wire.ended == {1: EndReason.MAX_TOKENS}


def test_failed_step_ends_its_own_requests_and_the_next_ones_run() -> None:
    wire = Bench([submit(1, prompt=[FAIL_ID])], [submit(2, max_tokens=2)], [], []).run()
    assert wire.ended == {1: EndReason.FAILED, 2: EndReason.MAX_TOKENS}
    assert wire.tokens(2) == 2


def test_device_whose_every_step_fails_is_broken_after_telling_each_request() -> None:
    bench = Bench(*[[submit(key, prompt=[FAIL_ID])] for key in range(1, 20)])
    with pytest.raises(EngineBrokenError, match=f"{MAX_FAILED_STEPS} steps in a row"):
        bench.loop.run()
    assert bench.wire.ended == dict.fromkeys(range(1, MAX_FAILED_STEPS + 1), EndReason.FAILED)


def test_request_that_the_core_cannot_take_gets_an_end_and_the_others_go_on() -> None:
    broken = Submit(1, (1, 2), Sampling(), Stop(4), output_ids=[3])  # type: ignore[arg-type] # no list: joining fails
    wire = Bench([broken, submit(2, max_tokens=2)], []).run()
    assert wire.ended == {1: EndReason.FAILED, 2: EndReason.MAX_TOKENS}
    assert wire.tokens(1) == 0


def test_second_request_with_a_live_key_leaves_the_first_alone() -> None:
    wire = Bench([submit(1, max_tokens=3), submit(1, max_tokens=50)], [], []).run()
    assert wire.ended == {1: EndReason.MAX_TOKENS}
    assert wire.tokens(1) == 3


@pytest.mark.parametrize(("key", "ended"), [(7, {7, 1}), (1, {1}), (None, {1})])
def test_unreadable_frame_ends_the_request_it_speaks_of_unless_that_lives(key: int | None, ended: set[int]) -> None:
    wire = Bench([submit(1, max_tokens=2), BadFrameError("garbage", key)], [], []).run()
    assert set(wire.ended) == ended
    assert wire.ended[1] is EndReason.MAX_TOKENS


def test_shutdown_ends_what_runs_in_one_last_report() -> None:
    wire = Bench([submit(1), submit(2)], [Shutdown()]).run()
    assert wire.ended == {1: EndReason.ABORTED, 2: EndReason.ABORTED}
    assert len(wire.reports) == 2


def test_engine_without_a_front_leaves_and_says_nothing_to_nobody() -> None:
    gone = iter([False, True, True])
    bench = Bench([submit(1)], [], [], orphaned=lambda: next(gone))
    wire = bench.run()
    assert len(wire.reports) == 1
    assert len(wire.waits) == 2


def test_engine_waits_for_messages_only_while_idle() -> None:
    wire = Bench([], [submit(1, max_tokens=2)], [], []).run()
    assert wire.waits == [IDLE_WAIT_SECONDS, IDLE_WAIT_SECONDS, 0.0, IDLE_WAIT_SECONDS, IDLE_WAIT_SECONDS]


def test_books_are_checked_when_idle_but_not_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench([submit(1, max_tokens=1)])
    checks: list[float] = []
    monkeypatch.setattr(bench.core, "check", lambda: checks.append(bench.now))
    bench.wire._batches += [[], [], [], []]
    receive = bench.wire.receive

    def later(wait: float) -> list[Any]:
        bench.now += CHECK_SECONDS / 2
        return receive(wait)

    monkeypatch.setattr(bench.wire, "receive", later)
    bench.loop.run()
    assert checks == [100.0 + 3 * CHECK_SECONDS / 2]
