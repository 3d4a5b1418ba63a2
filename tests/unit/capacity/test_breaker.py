"""When routers stop asking Redis, and when they ask again."""

from __future__ import annotations

import pytest

from pagemill_common.capacity import Breaker, BreakerState


class Bench:
    def __init__(self, **settings: float) -> None:
        self.now = 100.0
        self.breaker = Breaker(lambda: self.now, lambda: 1.0, **settings)  # type: ignore[arg-type]

    def fail(self, times: int) -> None:
        for _ in range(times):
            assert self.breaker.allow()
            self.breaker.failed("timeout")


@pytest.fixture
def bench() -> Bench:
    return Bench(failures=3, pause=0.25, max_pause=1.0)


def test_it_opens_after_errors_in_a_row(bench: Bench) -> None:
    bench.fail(2)
    assert bench.breaker.state is BreakerState.CLOSED
    bench.fail(1)
    assert bench.breaker.state is BreakerState.OPEN
    assert not bench.breaker.allow()
    assert bench.breaker.reason == "timeout"


def test_a_success_between_errors_keeps_it_closed(bench: Bench) -> None:
    for _ in range(5):
        bench.fail(2)
        bench.breaker.succeeded()
    assert bench.breaker.state is BreakerState.CLOSED


def test_one_probe_at_a_time_after_the_pause(bench: Bench) -> None:
    bench.fail(3)
    bench.now += 0.249
    assert not bench.breaker.allow()
    bench.now += 0.001
    assert bench.breaker.state is BreakerState.HALF_OPEN
    assert bench.breaker.allow()
    assert not bench.breaker.allow()


def test_a_good_probe_closes_it(bench: Bench) -> None:
    bench.fail(3)
    bench.now += 0.25
    assert bench.breaker.allow()
    bench.breaker.succeeded()
    assert bench.breaker.state is BreakerState.CLOSED
    assert bench.breaker.reason == ""
    bench.fail(2)
    assert bench.breaker.state is BreakerState.CLOSED


def test_failed_probes_double_the_pause_up_to_its_limit(bench: Bench) -> None:
    bench.fail(3)
    pauses = []
    pause = 0.25
    for _ in range(4):
        bench.now += pause
        assert bench.breaker.allow()
        bench.breaker.failed("connection")
        begun, step = bench.now, 0.0
        while bench.breaker.state is BreakerState.OPEN:
            step += 0.125
            bench.now = begun + step
        bench.now = begun
        pause = step
        pauses.append(pause)
    assert pauses == [0.5, 1.0, 1.0, 1.0]


def test_the_pause_begins_anew_after_it_was_closed(bench: Bench) -> None:
    bench.fail(3)
    for _ in range(3):
        bench.now += 1
        bench.fail(1)
    bench.now += 1
    assert bench.breaker.allow()
    bench.breaker.succeeded()
    bench.fail(3)
    bench.now += 0.25
    assert bench.breaker.allow()


def test_a_probe_that_never_reports_is_replaced(bench: Bench) -> None:
    bench.fail(3)
    bench.now += 0.25
    assert bench.breaker.allow()
    bench.now += 0.25
    assert bench.breaker.allow()


def test_it_can_ask_for_several_good_probes() -> None:
    bench = Bench(failures=1, successes=2)
    bench.fail(1)
    bench.now += 0.25
    assert bench.breaker.allow()
    bench.breaker.succeeded()
    assert bench.breaker.state is BreakerState.HALF_OPEN
    assert bench.breaker.allow()
    bench.breaker.succeeded()
    assert bench.breaker.state is BreakerState.CLOSED


def test_calls_that_left_before_it_opened_change_nothing_after(bench: Bench) -> None:
    bench.fail(3)
    for _ in range(30):
        bench.breaker.failed("timeout")
    bench.breaker.succeeded()
    assert bench.breaker.state is BreakerState.OPEN
    bench.now += 0.25
    assert bench.breaker.state is BreakerState.HALF_OPEN


def test_it_can_be_tripped_at_once(bench: Bench) -> None:
    bench.breaker.trip("fewer than half of the replicas are fresh")
    assert not bench.breaker.allow()
    assert bench.breaker.reason == "fewer than half of the replicas are fresh"


def test_dice_spread_the_probes_of_many_routers() -> None:
    for roll, ready_after in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        now = [0.0]
        breaker = Breaker(lambda now=now: now[0], lambda roll=roll: roll, failures=1, pause=1.0)
        breaker.failed("timeout")
        now[0] = ready_after - 0.001
        assert not breaker.allow()
        now[0] = ready_after
        assert breaker.allow()


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"successes": 0}, {"pause": 0}, {"pause": 3, "max_pause": 2}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Bench(**wrong)
