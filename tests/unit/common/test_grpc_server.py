"""The server runtime: statuses for what handlers raise, health, stop. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import generation_pb2_grpc
from pagemill_common import errors
from pagemill_common.errors import PUSHBACK_KEY, STATUS_DETAILS_KEY
from pagemill_common.grpc.channel import open_channel
from pagemill_common.grpc.options import ServerOptions, channel_options, server_options
from pagemill_common.grpc.server import GrpcServer
from pagemill_common.listen import ListenError

NAME = "pagemill.v1.GenerationService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
RAW = "test.Raw"


class Faulty(generation_pb2_grpc.GenerationServiceServicer):
    """Raises whatever a request's text says."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:  # type: ignore[override]
        await context.write(pb.GenerateResponse())
        await self._misbehave(request.text, context)

    async def GenerateText(self, request: pb.GenerateTextRequest, context: Any) -> pb.GenerateTextResponse:
        await self._misbehave(request.request.text, context)
        return pb.GenerateTextResponse()

    async def _misbehave(self, what: str, context: Any) -> None:
        match what:
            case "status":
                raise errors.queue_full(1.5, "full")
            case "bug":
                raise ValueError("secret inner text")
            case "stray cancel":
                raise asyncio.CancelledError
            case "abort":
                await context.abort(grpc.StatusCode.ABORTED, "by hand")
            case "wait":
                self.entered.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise


class RawHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handlers without codecs, as a relay has them: a coroutine and a generator."""

    def service(self, handler_call_details: Any) -> Any:
        match handler_call_details.method:
            case "/test.Raw/Coroutine":
                return grpc.unary_stream_rpc_method_handler(self._coroutine)  # type: ignore[arg-type]
            case "/test.Raw/Generator":
                return grpc.unary_stream_rpc_method_handler(self._generator)  # type: ignore[arg-type]
        return None

    async def _coroutine(self, request: bytes, context: Any) -> None:
        await context.write(request)
        raise errors.draining(0.5)

    async def _generator(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request
        raise errors.draining(0.5)


@contextlib.asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[GrpcServer, Faulty, grpc.aio.Channel]]:
    server, servicer = GrpcServer(ServerOptions("127.0.0.1:0", **options), [NAME]), Faulty()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server.server)
    server.server.add_generic_rpc_handlers((RawHandlers(),))
    async with server, open_channel(server.address) as channel:
        yield server, servicer, channel


async def outcome(call: Any) -> tuple[grpc.StatusCode, str, dict[str, Any], int]:
    """Code, message, trailers and number of messages of a call that fails."""
    count = 0
    with pytest.raises(grpc.aio.AioRpcError) as caught:  # noqa: PT012 - a stream fails while it is read
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                count += 1
        await call
    error = caught.value
    return error.code(), error.details() or "", dict(error.trailing_metadata() or ()), count


def call(channel: grpc.aio.Channel, what: str, unary: bool) -> Any:
    stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    request = pb.GenerateRequest(text=what)
    return stub.GenerateText(pb.GenerateTextRequest(request=request)) if unary else stub.Generate(request)


@pytest.mark.parametrize("unary", [True, False])
async def test_status_error_reaches_the_caller_with_its_details(unary: bool) -> None:
    async with running() as (_, _, channel):
        code, message, trailers, _ = await outcome(call(channel, "status", unary))
    assert (code, message) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert trailers[PUSHBACK_KEY] == "1500"
    status = status_pb2.Status.FromString(trailers[STATUS_DETAILS_KEY])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == "QUEUE_FULL"


@pytest.mark.parametrize("unary", [True, False])
async def test_bug_is_internal_and_only_the_log_tells_more(unary: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with running() as (_, _, channel):
        code, message, trailers, _ = await outcome(call(channel, "bug", unary))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in message + repr(trailers)
    record = next(r for r in caplog.records if r.name == "pagemill.grpc")
    incident = record.pagemill_fields["incident"]  # type: ignore[attr-defined]
    assert incident in message
    assert record.exc_info is not None
    assert "secret inner text" in str(record.exc_info[1])
    json.dumps(record.pagemill_fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize("unary", [True, False])
async def test_cancellation_that_is_not_of_the_call_ends_it_with_a_status(unary: bool) -> None:
    async with running() as (_, _, channel):
        async with asyncio.timeout(5):
            code, message, _, _ = await outcome(call(channel, "stray cancel", unary))
    assert code is grpc.StatusCode.INTERNAL
    assert "incident" in message


@pytest.mark.parametrize("unary", [True, False])
async def test_abort_by_hand_passes_through(unary: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (_, _, channel):
        code, message, _, _ = await outcome(call(channel, "abort", unary))
    assert (code, message) == (grpc.StatusCode.ABORTED, "by hand")
    assert not [r for r in caplog.records if r.name == "pagemill.grpc"]


@pytest.mark.parametrize("unary", [True, False])
async def test_cancel_reaches_the_handler(unary: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (_, servicer, channel):
        waiting = call(channel, "wait", unary)
        async with asyncio.timeout(5):
            await servicer.entered.wait()
        waiting.cancel()
        async with asyncio.timeout(5):
            await servicer.cancelled.wait()
    assert not [r for r in caplog.records if r.name == "pagemill.grpc"]


@pytest.mark.parametrize("kind", ["Coroutine", "Generator"])
async def test_raw_handlers_are_guarded_too(kind: str) -> None:
    async with running() as (_, _, channel):
        raw: Any = channel.unary_stream(f"/{RAW}/{kind}")
        code, _, trailers, count = await outcome(raw(b"x"))
    assert (code, count) == (grpc.StatusCode.UNAVAILABLE, 1)
    assert trailers[PUSHBACK_KEY] == "500"


async def test_method_that_is_not_there_is_unimplemented() -> None:
    async with running() as (_, _, channel):
        raw: Any = channel.unary_unary(f"/{RAW}/Nothing")
        code, _, _, _ = await outcome(raw(b"x"))
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_health_of_every_service_and_of_none() -> None:
    async with running() as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", NAME):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == NOT_SERVING
        server.health.set_serving(True)
        for service in ("", NAME):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
        code, _, _, _ = await outcome(stub.Check(health_pb2.HealthCheckRequest(service="other")))
        assert code is grpc.StatusCode.NOT_FOUND


async def test_watchers_hear_of_changes_and_of_nothing_else() -> None:
    async with running() as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=service)) for service in ("", NAME)]
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"))
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        for watch in watches:
            assert (await watch.read()).status == NOT_SERVING
        server.health.set_serving(True)
        server.health.set_serving(True)
        for watch in watches:
            assert (await watch.read()).status == SERVING
        server.health.set_serving(False)
        for watch in watches:
            assert (await watch.read()).status == NOT_SERVING
        for watch in (*watches, unknown):
            watch.cancel()


async def test_reflection_and_channelz_only_where_asked() -> None:
    for wanted in (False, True):
        async with running(reflection=wanted, channelz=wanted) as (_, _, channel):
            found: Any = channel.unary_unary("/grpc.channelz.v1.Channelz/GetServers")
            try:
                await found(b"")
                answered = True
            except grpc.aio.AioRpcError as error:
                answered = error.code() is not grpc.StatusCode.UNIMPLEMENTED
            assert answered is wanted


async def test_address_that_is_taken_is_named_and_grpc_is_not_even_asked(capfd: pytest.CaptureFixture[str]) -> None:
    async with running() as (server, _, _):
        with pytest.raises(ListenError, match=f"^--listen {server.address}: Address already in use$"):
            await GrpcServer(ServerOptions(server.address), [NAME]).start()
    assert capfd.readouterr().err == ""


async def test_stop_lets_calls_end_and_turns_health_off() -> None:
    async with running() as (server, _, channel):
        server.health.set_serving(True)
        waiting = call(channel, "wait", False)
        await waiting.read()
        stopping = asyncio.create_task(server.stop(0.3))
        await asyncio.sleep(0)
        assert not server.health.serving
        begun = asyncio.get_running_loop().time()
        await stopping
        assert asyncio.get_running_loop().time() - begun > 0.2, "the call was cut before its grace"
        waiting.cancel()


def test_clients_ping_less_often_than_servers_allow() -> None:
    server, client = dict(server_options(ServerOptions("h:1"))), dict(channel_options())
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]  # type: ignore[operator]
    assert "grpc.max_connection_age_ms" not in server
    aged = dict(server_options(ServerOptions("h:1", max_connection_age=60.0)))
    assert aged["grpc.max_connection_age_ms"] == 60_000
    assert aged["grpc.max_connection_age_grace_ms"] == 2**31 - 1
