"""Callers that send rubbish, come in crowds, reset what they open, or leave while the server writes to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import generation_pb2_grpc
from pagemill_common import errors
from pagemill_common.errors import STATUS_DETAILS_KEY
from pagemill_common.grpc.channel import open_channel
from pagemill_common.grpc.options import MAX_PENDING_CALLS, MAX_STREAMS_PER_CONNECTION, ServerOptions
from pagemill_common.grpc.sending import send
from pagemill_common.grpc.server import GrpcServer
from support.fake_replica import until

NAME = "pagemill.v1.GenerationService"
TOO_MANY = (7, 11)
"""REFUSED_STREAM and ENHANCE_YOUR_CALM, in a RST_STREAM frame."""


class Talker(generation_pb2_grpc.GenerationServiceServicer):
    """Generate talks without end and notes how each talk ended; GenerateText answers, or fails with what it is told."""

    def __init__(self) -> None:
        self.ends: list[BaseException] = []
        self.talking = 0

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:  # type: ignore[override]
        self.talking += 1
        try:
            while True:
                await send(context, pb.GenerateResponse(delta=pb.Delta(text="x" * 10_000)))
        except BaseException as end:
            self.ends.append(end)
            raise

    async def GenerateText(self, request: pb.GenerateTextRequest, context: Any) -> pb.GenerateTextResponse:
        if request.request.text:
            raise errors.bad_fields([(request.request.text, request.request.text)] * 40)
        return pb.GenerateTextResponse()


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[GrpcServer, Talker, grpc.aio.Channel]]:
    server, talker = GrpcServer(ServerOptions("127.0.0.1:0"), [NAME]), Talker()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(talker, server.server)
    async with server, open_channel(server.address) as channel:
        yield server, talker, channel


def ask(channel: grpc.aio.Channel) -> Any:
    stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
    return stub.GenerateText(pb.GenerateTextRequest())


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value


def violations(error: grpc.aio.AioRpcError) -> list[str]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata() or ())[STATUS_DETAILS_KEY])  # type: ignore[arg-type]
    request = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(request)
    return [violation.field for violation in request.field_violations]


@pytest.mark.parametrize(
    ("method", "raw"),
    [
        ("Generate", b"\xff\xff\xff\xff"),
        ("Generate", b"\x1a\x02\xff\xfe"),
        ("GenerateText", b"\xff"),
        ("GenerateText", b"\x0a\x04\x1a\x02\xff\xfe"),
    ],
    ids=["no tag", "no UTF-8", "no tag, unary", "no UTF-8 within"],
)
async def test_bytes_that_are_no_request_are_the_callers_fault_and_one_line_in_the_log(
    method: str, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as (_, talker, channel):
        kind: Any = channel.unary_stream if method == "Generate" else channel.unary_unary
        error = await failure(kind(f"/{NAME}/{method}")(raw))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert violations(error) == ["request"]
    assert not talker.talking
    (line,) = (record for record in caplog.records if record.name != "asyncio")
    assert (line.levelno, line.exc_info) == (logging.INFO, None)
    assert line.pagemill_fields["method"] == f"/{NAME}/{method}"  # type: ignore[attr-defined]


async def test_a_burst_of_calls_is_answered_whole() -> None:
    async with running() as (_, _, channel):
        codes = Counter[str]()

        async def one() -> None:
            try:
                await ask(channel)
                codes["OK"] += 1
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1

        # More than gRPC would keep by default, and all under way before the first is accepted.
        await asyncio.gather(*(one() for _ in range(MAX_STREAMS_PER_CONNECTION - 96)))
        assert codes == {"OK": MAX_STREAMS_PER_CONNECTION - 96}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def reset_rapidly(address: str, streams: int) -> int:
    """Opens and resets so many streams on one connection; how many the server refused as too many."""
    host, port = address.rsplit(":", 1)
    headers = b"".join(
        header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{NAME}/GenerateText".encode()),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        for number in range(streams):
            stream = 2 * number + 1
            opened = frame(1, 4, stream, headers) + frame(0, 1, stream, bytes(5))
            connection.sendall(opened + frame(3, 0, stream, struct.pack(">I", 8)))
        connection.sendall(frame(6, 0, 0, b"the end!"))
        return refusals(connection)


def refusals(connection: socket.socket) -> int:
    """Reads until the answer to the ping."""
    found, data = 0, b""
    while True:
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            size, kind = int.from_bytes(data[:3], "big"), data[3]
            payload, data = data[9 : 9 + size], data[9 + size :]
            found += kind == 3 and int.from_bytes(payload, "big") in TOO_MANY
            if kind == 6 and payload == b"the end!":
                return found
        received = connection.recv(65536)
        assert received, "the server closed the connection"
        data += received


async def test_one_connection_that_resets_what_it_opens_is_refused_and_takes_nothing_from_others() -> None:
    async with running() as (server, _, channel):
        await ask(channel)
        # In the loop's own thread: the server accepts nothing meanwhile, as when it is busy.
        assert reset_rapidly(server.address, 2 * MAX_PENDING_CALLS) > MAX_PENDING_CALLS
        await asyncio.gather(*(ask(channel) for _ in range(100)))


@pytest.mark.parametrize("leaves", ["cancels", "closes its channel", "runs out of time"])
async def test_a_caller_that_leaves_while_the_server_writes_to_it_is_no_fault_of_ours(
    leaves: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with running() as (server, talker, _), grpc.aio.insecure_channel(server.address, options=narrow) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        seconds = 1.0 if leaves == "runs out of time" else 60.0
        calls = [stub.Generate(pb.GenerateRequest(), timeout=seconds) for _ in range(50)]
        await until(lambda: talker.talking == len(calls))
        if leaves == "cancels":
            for call in calls:
                call.cancel()
        elif leaves == "closes its channel":
            await channel.close()
        await until(lambda: len(talker.ends) == len(calls))
    ends = Counter(end.code if isinstance(end, errors.StatusError) else type(end) for end in talker.ends)
    left, late = grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED
    # A caller's clock may run out a moment before the server's: then it has left.
    told = {left, late} if leaves == "runs out of time" else {left}
    assert set(ends) <= {*told, asyncio.CancelledError}
    assert any(ends[code] for code in told), "no write was waiting"
    assert not [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("text", ["\x00\x1b\n" * 2000, "\U0001f4a5" * 2000, "%" * 9000])
async def test_a_status_about_hostile_text_arrives_whole(text: str) -> None:
    async with running() as (_, _, channel):
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        error = await failure(stub.GenerateText(pb.GenerateTextRequest(request=pb.GenerateRequest(text=text))))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(violations(error)) == 16
    trailers = sum(len(key) + len(value) + 32 for key, value in error.trailing_metadata() or ())
    # gRPC sends the message beside them, percent-encoded.
    assert trailers + 3 * len((error.details() or "").encode()) < 8192
