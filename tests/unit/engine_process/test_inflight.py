"""Progress as the front sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagemill_replica.engine.messages import Ended, EndReason, EngineStats, Stage, StepReport, Timing
from pagemill_replica.engine_process.inflight import Inflight

STATS = EngineStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def report(steps: int, *ended: int) -> StepReport:
    return StepReport(
        [], [Ended(k, EndReason.ABORTED, Stage.QUEUE, Timing()) for k in ended], replace(STATS, steps=steps)
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inflight(clock: Clock) -> Inflight:
    return Inflight(clock)


def test_busy_from_the_first_request_to_the_end_of_the_last(inflight: Inflight) -> None:
    assert not inflight.busy
    inflight.submitted(1)
    inflight.submitted(2)
    inflight.reported(report(1, 1))
    assert inflight.busy
    assert 1 not in inflight
    assert 2 in inflight
    inflight.reported(report(2, 2))
    assert not inflight.busy


def test_steps_and_ends_are_progress_and_a_report_alone_is_not(inflight: Inflight, clock: Clock) -> None:
    inflight.submitted(1)
    inflight.submitted(2)
    clock.now = 110.0
    inflight.reported(report(1))
    assert inflight.last_progress == 110.0
    clock.now = 120.0
    inflight.reported(report(1))
    assert inflight.last_progress == 110.0, "something waits and nothing runs"
    inflight.reported(report(1, 1))
    assert inflight.last_progress == 120.0


def test_first_request_after_a_pause_starts_the_time_and_later_ones_do_not(inflight: Inflight, clock: Clock) -> None:
    clock.now = 500.0
    inflight.submitted(1)
    assert inflight.last_progress == 500.0
    clock.now = 600.0
    inflight.submitted(2)
    assert inflight.last_progress == 500.0, "more requests do not make a stuck engine look alive"


def test_nothing_is_with_an_engine_that_is_gone(inflight: Inflight) -> None:
    inflight.submitted(1)
    inflight.clear()
    assert not inflight.busy
