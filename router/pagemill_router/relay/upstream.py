"""One attempt's stream from a replica: raw frames in, ended whenever its block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from pagemill_common import telemetry
from pagemill_common.cancellation import being_cancelled
from pagemill_router.fleet.link import ReplicaLink
from pagemill_router.relay.failure import LOST, Failure, from_rpc_error

METHOD = "/pagemill.v1.GenerationService/Generate"


class AttemptFailedError(Exception):
    """The attempt has ended without a whole answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Upstream:
    """Reads one stream. Only one reader at a time."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[bytes, bytes], link: ReplicaLink) -> None:
        self._call = call
        self._link = link

    async def first(self) -> bytes | None:
        """As `read`, and gives up as soon as the replica's state stream is lost, since nothing has been delivered."""
        self._link.fragile.add(self._give_up)
        try:
            if not self._link.watching:
                raise AttemptFailedError(LOST)
            return await self.read()
        finally:
            self._link.fragile.discard(self._give_up)

    async def read(self) -> bytes | None:
        """The next frame; None at the end of a stream that ended well. AttemptFailedError otherwise."""
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise AttemptFailedError(from_rpc_error(error)) from error
        except asyncio.CancelledError:
            # gRPC raises this also where only the upstream call was cancelled: given up on, or its channel closed.
            if being_cancelled():
                raise
            raise AttemptFailedError(LOST) from None
        return frame if isinstance(frame, bytes) else None

    def _give_up(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def open_upstream(link: ReplicaLink, request: bytes, time_left: float) -> AsyncIterator[Upstream]:
    """Sends the request to the replica; the call is cancelled when the block is left, whatever the reason."""
    stub: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = link.channel.unary_stream(
        METHOD, request_serializer=None, response_deserializer=None
    )
    call = stub(request, timeout=time_left, metadata=grpc.aio.Metadata(*telemetry.inject()))
    link.open_streams += 1
    try:
        yield Upstream(call, link)
    finally:
        link.open_streams -= 1
        call.cancel()
