"""Full replicas: order, bound, deadline, and how it differs from having none."""

from __future__ import annotations

import asyncio

import grpc
from integration.router.conftest import Caller, RunRouter, question
from integration.router.test_retry import errors_of, reason_of

from pagemill_common import errors
from pagemill_common.errors import Reason
from support.fake_replica import FakeReplica, silent, text_of, until


async def fill(caller: Caller, max_tokens: int = 150) -> grpc.aio.UnaryStreamCall:  # type: ignore[type-arg]
    """Takes the room of a replica whose script is silent after a token."""
    call = caller.generation.Generate(question(max_tokens=max_tokens))
    await call.read()
    await call.read()
    return call


async def test_waiting_calls_are_served_in_order_as_room_comes(run_router: RunRouter) -> None:
    async with FakeReplica(capacity=10, script=silent(after=1)) as replica, run_router(replica) as caller:
        blocker = await fill(caller)
        replica.script = FakeReplica().script
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(caller.ask(question(max_tokens=100 + number))))
            await until(lambda: caller.router.room.length == number + 1)  # noqa: B023
        blocker.cancel()
        heard = await asyncio.gather(*tasks)
        assert [one.error for one in heard] == [None] * 4
        assert [seen.request.stop.max_tokens for seen in replica.seen] == [150, 100, 101, 102, 103]
        assert replica.most_committed <= 10
        await caller.idle()


async def test_a_full_queue_is_refused_with_an_estimate(run_router: RunRouter) -> None:
    async with (
        FakeReplica(capacity=10, script=silent(after=1)) as replica,
        run_router(replica, queue_limit=1) as caller,
    ):
        blocker = await fill(caller)
        waiting = asyncio.create_task(caller.ask(question(max_tokens=100)))
        await until(lambda: caller.router.room.length == 1)
        heard = await caller.ask(question(max_tokens=100))
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = errors_of(heard.error)
        assert details["reason"] == Reason.QUEUE_FULL
        assert 0 < float(str(details["retry_after"])) <= 60
        pushback = dict(heard.error.trailing_metadata())[errors.PUSHBACK_KEY]
        assert int(pushback) == round(1000 * float(str(details["retry_after"])))
        waiting.cancel()
        blocker.cancel()
        await caller.idle()


async def test_a_timeout_in_the_queue_says_so(run_router: RunRouter) -> None:
    async with FakeReplica(capacity=10, script=silent(after=1)) as replica, run_router(replica) as caller:
        blocker = await fill(caller)
        request = question(max_tokens=100)
        request.timeout.FromMilliseconds(300)
        heard = await caller.ask(request)
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert errors_of(heard.error)["metadata"] == {"stage": "queue"}
        blocker.cancel()
        await caller.idle()


async def test_a_timeout_names_the_stage_also_where_the_replica_does_not(run_router: RunRouter) -> None:
    async with FakeReplica(script=silent()) as replica, run_router(replica) as caller:
        for script, stage in ((silent(), "prefill"), (silent(after=2), "decode")):
            replica.script = script
            request = question()
            request.timeout.FromMilliseconds(300)
            heard = await caller.ask(request)
            assert heard.error is not None
            assert heard.error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert errors_of(heard.error)["metadata"] == {"stage": stage}
            await until(lambda: replica.live == 0)
        await caller.idle()


async def test_the_default_timeout_ends_calls_that_name_none(run_router: RunRouter) -> None:
    async with FakeReplica(script=silent()) as replica, run_router(replica, default_timeout=0.3) as caller:
        heard = await caller.ask(question())
        assert reason_of(heard) == Reason.DEADLINE_EXCEEDED


async def test_the_replica_is_told_the_time_that_is_left(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        request = question()
        request.timeout.FromSeconds(20)
        await caller.ask(request)
        await caller.ask(question(), timeout=10)
        left = [seen.request.timeout.ToMilliseconds() / 1000 for seen in replica.seen]
        assert 15 < left[0] <= 20
        assert 5 < left[1] <= 10.5  # gRPC rounds a deadline up


async def test_no_ready_replica_is_unavailable_not_full(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica, no_replica_grace=0.2) as caller:
        replica.ready = False
        replica.tell()
        await until(lambda: not any(view.ready for view in caller.router.fleet.snapshot().replicas))
        heard = await caller.ask(question())
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.UNAVAILABLE
        details = errors_of(heard.error)
        assert details["reason"] == Reason.NO_REPLICA
        assert details["retry_after"] == 1.0


async def test_a_replica_that_becomes_ready_within_the_grace_serves(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica, no_replica_grace=20.0) as caller:
        replica.ready = False
        replica.tell()
        await until(lambda: not any(view.ready for view in caller.router.fleet.snapshot().replicas))
        asking = asyncio.create_task(caller.ask(question(max_tokens=2)))
        await until(lambda: len(caller.router.generation.live_ids) == 1)
        replica.ready = True
        replica.tell()
        heard = await asking
        assert heard.text == text_of(2)


async def test_a_queue_does_not_wait_out_the_grace_one_by_one(run_router: RunRouter) -> None:
    """The replica goes away while many wait: all are told when the grace is over, not one a grace."""
    async with (
        FakeReplica(capacity=10, script=silent(after=1)) as replica,
        run_router(replica, no_replica_grace=0.5) as caller,
    ):
        blocker = await fill(caller)
        tasks = [asyncio.create_task(caller.ask(question(max_tokens=100))) for _ in range(30)]
        await until(lambda: caller.router.room.length == 30)
        await replica.stop()
        async with asyncio.timeout(10):
            heard = await asyncio.gather(*tasks)
        assert {reason_of(one) for one in heard} == {Reason.NO_REPLICA}
        blocker.cancel()
        await caller.idle()


async def test_a_ledgers_refusal_waits_for_room_and_is_not_a_failure(run_router: RunRouter) -> None:
    """The router thinks that there is room; the replica knows better, more often than attempts may fail."""
    async with FakeReplica(capacity=1000) as replica, run_router(replica, max_attempts=2) as caller:
        original, refusals = replica._accept, []

        def refuse_first(key: str, request: object) -> None:
            if len(refusals) < 5:
                refusals.append(key)
                raise errors.replica_full(0.05, "no room")
            original(key, request)  # type: ignore[arg-type]

        replica._accept = refuse_first  # type: ignore[method-assign,assignment]
        heard = await caller.ask(question(max_tokens=2))
        assert heard.error is None
        assert [seen.request.placement.attempt for seen in replica.seen] == [1, 2, 3, 4, 5, 6]


async def test_a_request_no_replica_could_ever_hold_is_out_of_range(run_router: RunRouter) -> None:
    async with FakeReplica(capacity=10) as replica, run_router(replica) as caller:
        heard = await caller.ask(question(max_tokens=500))
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.OUT_OF_RANGE
        assert not replica.seen
