"""Callers that send rubbish, invent what gRPC says, or stop reading, as a whole router answers them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.rpc import error_details_pb2
from grpc_status.rpc_status import from_call
from integration.router.conftest import Heard, RunRouter, question

from pagemill.v1 import GenerationServiceStub, admin_pb2, generation_pb2_grpc, replica_pb2, replica_pb2_grpc
from pagemill.v1 import generation_pb2 as pb
from pagemill_common.grpc.options import MAX_REQUEST_BYTES, ServerOptions
from pagemill_common.grpc.server import GrpcServer
from pagemill_replica.front.generation_service import GenerationServicer
from pagemill_replica.front.replica_service import ReplicaServicer
from support.fake_replica import FakeReplica, answer, silent, text_of, until

RETRY = "grpc-previous-rpc-attempts"
GENERATION = pb.DESCRIPTOR.services_by_name["GenerationService"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
REPLICA = replica_pb2.DESCRIPTOR.services_by_name["ReplicaService"]


def code_of(heard: Heard) -> grpc.StatusCode:
    assert heard.error is not None
    return heard.error.code()


def bad_fields(error: grpc.aio.AioRpcError) -> list[str]:
    status, found = from_call(error), error_details_pb2.BadRequest()  # type: ignore[arg-type]
    assert status is not None
    assert status.details[0].Unpack(found)
    return [violation.field for violation in found.field_violations]


def finished(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What the router's log says of the calls that have ended."""
    return [one.pagemill_fields for one in caplog.records if one.getMessage() == "request finished"]  # type: ignore[attr-defined]


async def send_raw(channel: grpc.aio.Channel, service: ServiceDescriptor, method: Any, raw: bytes) -> Any:
    kind: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = kind(f"/{service.full_name}/{method.name}")(raw, timeout=10)
    return await (call.read() if method.server_streaming else call)


async def every_method_refuses_rubbish(address: str, services: list[ServiceDescriptor]) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        for service in services:
            for method in service.methods:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await send_raw(channel, service, method, b"\xff")
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, method.full_name
                assert bad_fields(caught.value) == ["request"]


async def test_every_method_of_a_router_calls_bytes_that_are_no_request_the_callers_fault(
    run_router: RunRouter,
) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        await every_method_refuses_rubbish(caller.router.server.address, [GENERATION, ADMIN])


async def test_every_method_of_a_replica_calls_bytes_that_are_no_request_the_callers_fault() -> None:
    server, nothing = GrpcServer(ServerOptions("127.0.0.1:0"), []), cast(Any, None)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(
        GenerationServicer(nothing, nothing, nothing), server.server
    )
    replica_pb2_grpc.add_ReplicaServiceServicer_to_server(
        ReplicaServicer(nothing, nothing, nothing, nothing), server.server
    )
    async with server:
        await every_method_refuses_rubbish(server.address, [GENERATION, REPLICA])


async def test_the_longest_prompt_is_judged_by_us_and_what_is_far_longer_by_grpc(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        ids = pb.TokenIds(ids=[1 << 20] * (1 << 20))
        longest = pb.GenerateRequest(token_ids=ids)
        assert longest.ByteSize() < MAX_REQUEST_BYTES
        assert code_of(await caller.ask(longest)) is grpc.StatusCode.OUT_OF_RANGE
        heard = await caller.ask(question("x" * ((4 << 20) + 1)))
        assert code_of(heard) is grpc.StatusCode.INVALID_ARGUMENT
        heard = await caller.ask(question("x" * (MAX_REQUEST_BYTES + 1)))
        assert code_of(heard) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await caller.ask(question())).error is None


async def test_invented_retries_of_a_live_call_are_bounded(run_router: RunRouter) -> None:
    async with FakeReplica(script=silent(after=1)) as replica, run_router(replica) as caller:
        # A client without retries of its own sends the header as it is given.
        channel = grpc.aio.insecure_channel(caller.router.server.address, options=[("grpc.enable_retries", 0)])
        stub: Any = GenerationServiceStub(channel)
        calls = [stub.Generate(question(request_id="same"), metadata=[(RETRY, "4")]) for _ in range(20)]

        async def begins(call: Any) -> str:
            try:
                await call.read()
                return "runs"
            except grpc.aio.AioRpcError as error:
                return error.code().name

        ends = await asyncio.gather(*(begins(call) for call in calls))
        assert (ends.count("runs"), ends.count("ALREADY_EXISTS")) == (5, 15)
        for call in calls:
            call.cancel()
        await channel.close()
        await caller.idle()


async def test_ids_too_long_to_be_ids_do_not_clash(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        # Long enough that both are checked in the thread, and so are there at the same time.
        asked = (caller.ask(question("x" * 100_000, request_id="a" * 128 + end)) for end in ("b", "b", "c"))
        for heard in await asyncio.gather(*asked):
            assert code_of(heard) is grpc.StatusCode.INVALID_ARGUMENT
            assert heard.error is not None
            assert "request_id" in bad_fields(heard.error)


async def test_a_call_that_grpc_turned_away_goes_elsewhere_and_the_replica_keeps_its_name(
    run_router: RunRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def turned_away(replica: FakeReplica, request: pb.GenerateRequest, context: Any):  # type: ignore[no-untyped-def]
        await context.abort(grpc.StatusCode.CANCELLED)
        yield

    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        one.scripts += [turned_away] * 3
        for _ in range(3):
            heard = await caller.ask(question(max_tokens=3))
            assert (heard.error, heard.text) == (None, text_of(3))
        assert not [record for record in caplog.records if record.getMessage() == "attempt failed"]
        await caller.idle()


async def test_a_lone_replica_that_was_only_busy_gets_the_call_again(run_router: RunRouter) -> None:
    async def turned_away(replica: FakeReplica, request: pb.GenerateRequest, context: Any):  # type: ignore[no-untyped-def]
        await context.abort(grpc.StatusCode.CANCELLED)
        yield

    async with FakeReplica() as replica, run_router(replica, max_attempts=1) as caller:
        replica.scripts += [turned_away] * 2
        heard = await caller.ask(question(max_tokens=3), timeout=20)
        assert (heard.error, heard.text) == (None, text_of(3))


async def test_a_caller_that_never_reads_is_one_line_and_no_fault(
    run_router: RunRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with FakeReplica(script=answer) as replica, run_router(replica) as caller:
        async with grpc.aio.insecure_channel(caller.router.server.address, options=narrow) as channel:
            stub: Any = GenerationServiceStub(channel)
            calls = [stub.Generate(question(max_tokens=8000), timeout=2.0) for _ in range(10)]
            await until(lambda: len(finished(caplog)) == len(calls))
        await caller.idle()
    assert {line["code"] for line in finished(caplog)} <= {"CANCELLED", "DEADLINE_EXCEEDED"}
    assert not [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
