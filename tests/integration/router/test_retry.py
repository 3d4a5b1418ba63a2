"""What happens when a replica fails: before the first token, and after it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_status.rpc_status import from_call
from integration.router.conftest import Heard, RunRouter, question

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2
from pagemill_common import errors
from pagemill_common.errors import Reason
from support.fake_replica import FakeReplica, Script, answer, delta, failing, finished, silent, started, text_of, until


def reason_of(heard: Heard) -> str:
    assert heard.error is not None
    return str(errors_of(heard.error)["reason"])


def errors_of(error: grpc.aio.AioRpcError) -> dict[str, object]:
    from google.rpc import error_details_pb2

    found: dict[str, object] = {"reason": ""}
    status = from_call(error)  # type: ignore[arg-type]
    for detail in status.details if status else ():
        info, partial, retry = (
            error_details_pb2.ErrorInfo(),
            internal_pb2.PartialOutput(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            found["reason"] = info.reason
            found["metadata"] = dict(info.metadata)
        elif detail.Unpack(partial):
            found["tokens"] = list(partial.tokens_per_choice)
        elif detail.Unpack(retry):
            found["retry_after"] = retry.retry_delay.ToMilliseconds() / 1000
    return found


def served(*replicas: FakeReplica) -> list[tuple[str, int]]:
    """(replica, attempt) of every request, in order of attempts."""
    rows = [(one.request.placement.attempt, replica.name) for replica in replicas for one in replica.seen]
    return [(name, attempt) for attempt, name in sorted(rows)]


TRANSIENT = [
    errors.draining(None),
    errors.wrong_epoch("a", "b"),
    errors.replica_lost([], "the engine died"),
    errors.replica_full(0.1, "no room"),
    errors.StatusError(grpc.StatusCode.UNAVAILABLE, "bare"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: error.reason or "bare")
async def test_before_the_first_token_another_replica_answers(run_router: RunRouter, error: errors.StatusError) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts.append(failing(error))
        heard = await caller.ask(question(max_tokens=3))
        assert heard.error is None
        assert heard.text == text_of(3)
        assert heard.started[0].replica == "r1"
        assert served(one, two) == [("r0", 1), ("r1", 2)]
        first, second = one.seen[0].request, two.seen[0].request
        assert first.placement.call_id == second.placement.call_id
        assert first.placement.reservation_id != second.placement.reservation_id
        assert first.sampling.seed == second.sampling.seed
        await caller.idle()


async def test_started_without_a_delta_is_no_answer_yet(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts.append(failing(errors.draining(None), after=0))
        heard = await caller.ask(question(max_tokens=3))
        assert heard.error is None
        assert [one.replica for one in heard.started] == ["r1"]
        assert heard.text == text_of(3)


async def test_a_replica_that_dies_before_the_first_token_is_replaced(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.script = silent()
        asking = asyncio.create_task(caller.ask(question(max_tokens=3)))
        await until(lambda: one.live == 1)
        await one.stop()
        heard = await asking
        assert heard.error is None
        assert heard.started[0].replica == "r1"
        await caller.idle()


async def test_a_replica_that_falls_silent_loses_the_calls_it_has_not_answered(run_router: RunRouter) -> None:
    async with (
        FakeReplica("r0") as one,
        FakeReplica("r1") as two,
        run_router(one, two, policy="round_robin", watch_timeout=1.5) as caller,
    ):
        one.script = silent()
        one.mute = True
        heard = await caller.ask(question(max_tokens=3))
        assert heard.error is None
        assert heard.started[0].replica == "r1"


@pytest.mark.parametrize("delivered", [1, 4])
async def test_after_the_first_token_a_lost_replica_ends_the_stream_with_counts(
    run_router: RunRouter, delivered: int
) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts.append(failing(errors.draining(None), after=delivered))
        heard = await caller.ask(question(max_tokens=9))
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.UNAVAILABLE
        details = errors_of(heard.error)
        assert (details["reason"], details["tokens"]) == (Reason.PARTIAL_OUTPUT, [delivered])
        assert heard.text == text_of(delivered)
        assert not two.seen
        await caller.idle()


async def test_a_torn_connection_mid_stream_is_partial_output(run_router: RunRouter) -> None:
    async with FakeReplica("r0", script=silent(after=2)) as one, run_router(one) as caller:
        asking = asyncio.create_task(caller.ask(question(max_tokens=9)))
        await until(lambda: one.live == 1)
        await asyncio.sleep(0.1)
        await one.stop()
        heard = await asking
        assert reason_of(heard) == Reason.PARTIAL_OUTPUT
        await caller.idle()


async def test_an_answer_in_one_piece_begins_again_even_after_tokens(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts.append(failing(errors.draining(None), after=2))
        whole = await caller.generation.GenerateText(pb.GenerateTextRequest(request=question(max_tokens=4)))
        assert whole.choices[0].text == text_of(4)
        assert whole.started.replica == "r1"


PASSED_ON = [
    errors.bad_fields([("sampling.top_k", "larger than the vocabulary")]),
    errors.out_of_range("stop.max_tokens", "does not fit"),
    errors.model_not_found("tiny", ["other"]),
    errors.unimplemented("n"),
    errors.deadline("prefill"),
    errors.internal("0123abcd"),
]


@pytest.mark.parametrize("after", [None, 2])
@pytest.mark.parametrize("error", PASSED_ON, ids=lambda error: error.reason)
async def test_what_is_not_the_replicas_failure_is_passed_on_unchanged(
    run_router: RunRouter, error: errors.StatusError, after: int | None
) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts.append(failing(error, after))
        heard = await caller.ask(question())
        assert heard.error is not None
        assert heard.error.code() is error.code
        assert from_call(heard.error) == error.to_rpc_status()  # type: ignore[arg-type]
        assert not two.seen
        await caller.idle()


async def test_attempts_are_bounded(run_router: RunRouter) -> None:
    leaving = failing(errors.draining(None))
    async with (
        FakeReplica("r0", script=leaving) as one,
        FakeReplica("r1", script=leaving) as two,
        FakeReplica("r2", script=leaving) as three,
        run_router(one, two, three, policy="round_robin", max_attempts=2) as caller,
    ):
        heard = await caller.ask(question())
        assert heard.error is not None
        assert heard.error.code() is grpc.StatusCode.UNAVAILABLE
        details = errors_of(heard.error)
        assert (details["reason"], details["retry_after"]) == (Reason.REPLICA_LOST, 0.1)
        assert len(one.seen + two.seen + three.seen) == 2


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "error",
    [errors.replica_lost([], "the engine died"), errors.StatusError(grpc.StatusCode.UNAVAILABLE, "connection reset")],
    ids=["engine", "process"],
)
async def test_a_call_under_which_two_replicas_died_spares_the_third_and_is_not_sent_again(
    run_router: RunRouter, error: errors.StatusError, whole: bool
) -> None:
    lost = failing(error)
    async with (
        FakeReplica("r0", script=lost) as one,
        FakeReplica("r1", script=lost) as two,
        FakeReplica("r2", script=lost) as three,
        run_router(one, two, three, policy="round_robin", max_attempts=9) as caller,
    ):
        text = pb.GenerateTextRequest(request=question())
        call = caller.generation.GenerateText(text) if whole else caller.generation.Generate(question()).read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = errors_of(caught.value)
        assert details["reason"] == Reason.REPLICA_LOST
        assert "retry_after" not in details
        trailers = dict(caught.value.trailing_metadata() or ())
        assert trailers[errors.PUSHBACK_KEY] == "-1"
        assert (len(one.seen), len(two.seen), len(three.seen)) == (1, 1, 0)
        await caller.idle()


async def test_replicas_that_only_refuse_a_call_are_not_counted_as_lost(run_router: RunRouter) -> None:
    async with (
        FakeReplica("r0", script=failing(errors.draining(None))) as one,
        FakeReplica("r1", script=failing(errors.no_replica(1.0, "the model is loading"))) as two,
        FakeReplica("r2") as three,
        run_router(one, two, three, policy="round_robin") as caller,
    ):
        heard = await caller.ask(question())
        assert heard.error is None
        assert served(one, two, three) == [("r0", 1), ("r1", 2), ("r2", 3)]


async def test_a_replica_that_failed_a_call_does_not_get_it_again(run_router: RunRouter) -> None:
    async with (
        FakeReplica("r0", script=failing(errors.replica_lost([], "the engine died"))) as one,
        run_router(one, no_replica_grace=0.1) as caller,
    ):
        heard = await caller.ask(question())
        assert reason_of(heard) == Reason.REPLICA_LOST
        assert len(one.seen) == 1


async def gapped(replica: FakeReplica, request: pb.GenerateRequest, context: object):  # type: ignore[no-untyped-def]
    yield started(replica.name, request)
    yield delta(0)
    yield delta(2)


async def endless(replica: FakeReplica, request: pb.GenerateRequest, context: object):  # type: ignore[no-untyped-def]
    yield started(replica.name, request)
    yield delta(0)


async def doubled(replica: FakeReplica, request: pb.GenerateRequest, context: object):  # type: ignore[no-untyped-def]
    yield started(replica.name, request)
    yield delta(0)
    yield delta(0)
    yield delta(1)
    yield finished(2)


@pytest.mark.parametrize("script", [gapped, endless])
async def test_a_broken_stream_is_never_shown_as_whole(run_router: RunRouter, script: Script) -> None:
    async with FakeReplica("r0", script=script) as one, run_router(one) as caller:
        heard = await caller.ask(question())
        assert reason_of(heard) == Reason.PARTIAL_OUTPUT
        assert heard.text == text_of(1)
        assert not heard.finished


async def test_a_frame_sent_twice_is_forwarded_once(run_router: RunRouter) -> None:
    async with FakeReplica("r0", script=doubled) as one, run_router(one) as caller:
        heard = await caller.ask(question())
        assert heard.error is None
        assert heard.text == text_of(2)


async def test_nothing_reaches_the_caller_before_the_first_token(run_router: RunRouter) -> None:
    """No initial metadata either: until then gRPC itself may retry the call."""
    gate = asyncio.Event()

    async def gated(replica: FakeReplica, request: pb.GenerateRequest, context: object):  # type: ignore[no-untyped-def]
        yield started(replica.name, request)
        await gate.wait()
        yield delta(0)
        yield finished(1)

    async with FakeReplica("r0", script=gated) as one, run_router(one) as caller:
        call = caller.generation.Generate(question())
        headers = asyncio.ensure_future(call.initial_metadata())
        await until(lambda: one.live == 1)
        await asyncio.sleep(0.2)
        assert not headers.done()
        gate.set()
        await headers
        assert [message.WhichOneof("event") async for message in call] == ["started", "delta", "finished"]


async def test_a_restarted_replica_takes_over_from_its_former_self(run_router: RunRouter) -> None:
    one = FakeReplica("r0")
    await one.__aenter__()
    async with run_router(one, no_replica_grace=20.0) as caller:
        one.script = silent()
        asking = asyncio.create_task(caller.ask(question(max_tokens=3)))
        await until(lambda: one.live == 1)
        await one.stop()
        async with FakeReplica("r0", listen=one.address) as two:
            heard = await asking
            assert heard.error is None
            assert two.seen[0].request.placement.epoch == two.epoch


async def test_the_caller_that_wants_no_token_ids_gets_none_and_the_relay_still_has_them(
    run_router: RunRouter,
) -> None:
    async with FakeReplica("r0", script=answer) as one, run_router(one) as caller:
        request = question(max_tokens=3, output=pb.OutputOptions(token_ids=False))
        heard = await caller.ask(request)
        assert heard.error is None
        assert (heard.text, heard.token_ids) == (text_of(3), [])
        assert one.seen[0].request.output.token_ids


async def test_a_stream_whose_channel_is_closed_ends_with_a_status(run_router: RunRouter) -> None:
    async with FakeReplica("r0", script=silent(after=3)) as one, run_router(one) as caller:
        streaming = asyncio.create_task(caller.ask(question("a prompt of some blocks " * 4, max_tokens=9)))
        (link,) = caller.router.fleet.links()
        await until(lambda: len(link.held) > 0)
        await link.channel.close()
        async with asyncio.timeout(5):
            heard = await streaming
        assert reason_of(heard) == Reason.PARTIAL_OUTPUT
        await caller.idle()
