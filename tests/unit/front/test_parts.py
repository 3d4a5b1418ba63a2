"""Readiness, drain, time limits, throughput: small decisions of the front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from opentelemetry.context import Context

from pagemill.v1 import generation_pb2 as pb
from pagemill_replica.front.answer import Answer
from pagemill_replica.front.arrival import Arrival, time_limit
from pagemill_replica.front.drain import Drain, DrainTimes
from pagemill_replica.front.health import ReadinessWatch
from pagemill_replica.front.readiness import Progress, not_ready_because
from pagemill_replica.front.throughput import Throughput


@pytest.mark.parametrize(
    ("progress", "draining", "reason"),
    [
        (Progress(warm=True, alive=True, busy=False, last_step=0.0), False, ""),
        (Progress(warm=True, alive=True, busy=True, last_step=95.0), False, ""),
        (Progress(warm=True, alive=True, busy=True, last_step=80.0), False, "no step"),
        (Progress(warm=False, alive=True, busy=False, last_step=0.0), False, "loading"),
        (Progress(warm=True, alive=False, busy=False, last_step=99.0), False, "gone"),
        (Progress(warm=True, alive=True, busy=False, last_step=99.0), True, "draining"),
    ],
)
def test_readiness_is_judged_by_progress(progress: Progress, draining: bool, reason: str) -> None:
    said = not_ready_because(progress, draining=draining, now=100.0, stall_after=10.0)
    assert reason in said
    assert bool(reason) == bool(said)


def test_readiness_tells_of_changes_only(clock: Any) -> None:
    told: list[bool] = []
    state = {"warm": False}
    watch = ReadinessWatch(
        lambda: Progress(warm=state["warm"], alive=True, busy=False, last_step=0.0),
        draining=lambda: False,
        stall_after=10.0,
        clock=clock,
        on_change=told.append,
    )
    watch.judge()
    state["warm"] = True
    watch.judge()
    watch.judge()
    state["warm"] = False
    watch.judge()
    assert told == [True, False]


async def test_readiness_is_judged_again_after_telling_of_it_failed(clock: Any) -> None:
    told: list[bool] = []
    warm = {"now": True}
    again = asyncio.Event()

    def tell(ready: bool) -> None:
        told.append(ready)
        warm["now"] = False
        if len(told) == 1:
            raise OSError("the disk is full")
        again.set()

    watch = ReadinessWatch(
        lambda: Progress(warm=warm["now"], alive=True, busy=False, last_step=0.0),
        draining=lambda: False,
        stall_after=10.0,
        clock=clock,
        on_change=tell,
        interval=0.001,
    )
    running = asyncio.create_task(watch.run())
    await asyncio.wait({running, asyncio.create_task(again.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    running.cancel()
    assert told == [True, False]


async def test_drain_runs_also_where_telling_of_it_fails(clock: Any) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    idle = asyncio.Event()
    idle.set()
    one = drain(DrainTimes(0.0, 10.0), clock, idle, [], on_begin=fail)
    with pytest.raises(OSError, match="full"):
        one.begin("test")
    await one.run()


@pytest.mark.parametrize(
    ("grace", "margin", "settle", "close"), [(600.0, 15.0, 3.0, 585.0), (10.0, 15.0, 3.0, 3.0), (10.0, 0.0, 3.0, 10.0)]
)
def test_stragglers_are_closed_before_the_grace_ends_but_not_before_settling(
    grace: float, margin: float, settle: float, close: float
) -> None:
    assert DrainTimes.of(settle=settle, grace=grace, margin=margin).close == close


def drain(
    times: DrainTimes,
    clock: Any,
    idle: asyncio.Event,
    log: list[str],
    on_begin: Callable[[], None] | None = None,
) -> Drain:
    async def wait_idle() -> None:
        await idle.wait()

    def close_stragglers() -> int:
        log.append("close")
        return 0

    return Drain(
        times,
        clock=clock,
        live=lambda: int(not idle.is_set()),
        idle=wait_idle,
        on_begin=on_begin or (lambda: log.append("begin")),
        close_stragglers=close_stragglers,
    )


async def test_drain_ends_when_the_last_stream_has() -> None:
    loop, idle, log = asyncio.get_running_loop(), asyncio.Event(), []  # type: ignore[var-annotated]
    one = drain(DrainTimes(0.0, 1000.0), loop.time, idle, log)
    running = asyncio.create_task(one.run())
    await asyncio.sleep(0)
    assert (one.draining, one.refusing) == (False, False)
    one.begin("test")
    one.begin("again")
    assert one.draining
    await asyncio.sleep(0.01)
    assert not running.done()
    idle.set()
    await running
    assert log == ["begin", "close"]


async def test_drain_gives_up_on_stragglers_at_its_time() -> None:
    loop, log = asyncio.get_running_loop(), []  # type: ignore[var-annotated]
    one = drain(DrainTimes(0.0, 0.05), loop.time, asyncio.Event(), log)
    one.begin("test")
    await one.run()
    assert log == ["begin", "close"]
    assert one.seconds_left == 0.0


def test_calls_are_refused_only_after_settling(clock: Any) -> None:
    one = drain(DrainTimes(3.0, 10.0), clock, asyncio.Event(), [])
    one.begin("test")
    assert not one.refusing
    clock.now += 3.0
    assert one.refusing
    assert one.seconds_left == 7.0


def limit(timeout: float | None = None, deadline: float | None = None, remaining: float | None = None) -> float:
    request = pb.GenerateRequest()
    if timeout is not None:
        request.timeout.FromMilliseconds(int(timeout * 1000))
    if remaining is not None:
        request.placement.continuation.remaining.FromMilliseconds(int(remaining * 1000))
    arrived = Arrival(100.0, Context(), None if deadline is None else 100.0 + deadline, repeated=False)
    return time_limit(request, arrived, default=30.0, longest=60.0)


def test_shortest_limit_counts_and_the_default_only_where_there_is_none() -> None:
    assert limit() == 30.0
    assert limit(timeout=45.0) == 45.0
    assert limit(timeout=5.0, deadline=5.25) == 5.0
    assert limit(deadline=4.0) == 4.0
    assert limit(timeout=50.0, remaining=7.0) == 7.0
    assert limit(timeout=1000.0) == 60.0
    assert limit(deadline=-1.0) == -1.0


def test_huge_timeout_is_cut() -> None:
    request = pb.GenerateRequest(timeout=Duration(seconds=315_576_000_000))
    assert time_limit(request, Arrival(0.0, Context(), None, repeated=False), default=1.0, longest=60.0) == 60.0


def test_throughput_settles_at_the_rate_and_decays(clock: Any) -> None:
    rate = Throughput(5.0, clock)
    for _ in range(1000):
        clock.now += 0.05
        rate.add(5)
    assert rate.rate == pytest.approx(100.0, rel=0.05)
    clock.now += 50.0
    assert rate.rate < 0.1


async def test_answer_joins_the_stream() -> None:
    parts = Answer()
    for frame in (
        pb.GenerateResponse(started=pb.Started(request_id="a")),
        pb.GenerateResponse(delta=pb.Delta(text="x", token_ids=[1, 2])),
        pb.GenerateResponse(delta=pb.Delta(text="y", token_ids=[3])),
        pb.GenerateResponse(finished=pb.Finished(reason=pb.FINISH_REASON_MAX_TOKENS)),
    ):
        await parts.write(frame)
    answer = parts.whole()
    assert answer.started.request_id == "a"
    assert (answer.choices[0].text, list(answer.choices[0].token_ids)) == ("xy", [1, 2, 3])
    assert answer.choices[0].finished.reason == pb.FINISH_REASON_MAX_TOKENS
