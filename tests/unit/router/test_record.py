"""What a router writes of a call that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.trace import INVALID_SPAN

from pagemill_common import telemetry
from pagemill_common.grpc.interceptor import StatusInterceptor
from pagemill_router.servicer.record import CallRecord, recorded
from pagemill_router.telemetry import RouterTelemetry

METHOD = "/test.Test/Call"


@contextlib.asynccontextmanager
async def server(handler: Any) -> AsyncIterator[grpc.aio.Channel]:
    """Serves `handler` as either tier would."""
    running = grpc.aio.server(interceptors=[StatusInterceptor()])
    method: Any = grpc.unary_unary_rpc_method_handler(handler)
    running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", {"Call": method}),))
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await running.stop(0)


@pytest.mark.parametrize("stray", [True, False])
async def test_the_line_has_the_status_that_the_caller_gets(stray: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A CancelledError that nobody asked for is a fault, and the caller's leaving is none."""
    caplog.set_level("INFO", "pagemill")
    observed = telemetry.setup("test")
    entered, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        try:
            with recorded(CallRecord("Call", "id", 0.0), INVALID_SPAN, RouterTelemetry(observed), lambda: 1.0):
                entered.set()
                if stray:
                    raise asyncio.CancelledError
                await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async with server(handler) as channel:
        call = channel.unary_unary(METHOD)(b"", timeout=10.0)
        await entered.wait()
        if not stray:
            call.cancel()
        await ended.wait()
        code = (await call.code()).name
    (line,) = [vars(r)["pagemill_fields"] for r in caplog.records if r.message == "request finished"]
    assert line["code"] == code == ("INTERNAL" if stray else "CANCELLED")
    observed.shutdown()
