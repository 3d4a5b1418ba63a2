"""When an engine is given up on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagemill_replica.front.hang import HangWatch
from pagemill_replica.front.readiness import Progress

BUSY = Progress(warm=True, alive=True, busy=True, last_step=100.0)


class Engine:
    """What is told of it."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __call__(self) -> Progress:
        return self.progress


async def test_an_engine_that_makes_no_step_is_given_up_on(clock: Any) -> None:
    clock.now = 110.5
    watch = HangWatch(Engine(BUSY), limit=10.0, clock=clock, interval=0.0)
    assert await watch.wait() == "the engine has work and has made no step for 10 s"


def test_not_before_the_limit(clock: Any) -> None:
    watch = HangWatch(Engine(BUSY), limit=10.0, clock=clock)
    clock.now = 110.0
    assert [watch.look() for _ in range(3)] == ["", "", ""]


@pytest.mark.parametrize("change", [{"busy": False}, {"alive": False}, {"warm": False}])
def test_an_engine_without_work_or_that_is_gone_or_loads_does_not_hang(clock: Any, change: dict[str, bool]) -> None:
    watch = HangWatch(Engine(replace(BUSY, **change)), limit=10.0, clock=clock)
    clock.now = 1000.0
    assert [watch.look() for _ in range(3)] == ["", "", ""]


def test_steps_found_after_the_front_was_itself_stopped_save_the_engine(clock: Any) -> None:
    engine = Engine(BUSY)
    watch = HangWatch(engine, limit=10.0, clock=clock)
    clock.now = 1000.0
    assert watch.look() == ""
    engine.progress = replace(BUSY, last_step=1000.0)
    assert watch.look() == ""
    clock.now = 1011.0
    assert watch.look() == ""
    assert watch.look() != ""
