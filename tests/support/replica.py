"""Real replica processes: a made-up model behind the real front and tokenizer, whose steps take what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from pagemill.v1 import generation_pb2, generation_pb2_grpc, internal_pb2, replica_pb2, replica_pb2_grpc
from pagemill_common.errors import STATUS_DETAILS_KEY
from pagemill_common.grpc.channel import open_channel
from support.fleet import Tier, smollm2, until


@dataclass
class Failed:
    """A status as a caller sees it."""

    code: grpc.StatusCode
    message: str
    reason: str
    metadata: dict[str, str]
    details: list[Any]
    messages: int = 0
    """Messages that came before it."""


def failed(error: grpc.aio.AioRpcError) -> Failed:
    """Unpacks a status with its typed details."""
    raw = dict(error.trailing_metadata() or ()).get(STATUS_DETAILS_KEY, b"")
    found = Failed(error.code(), error.details() or "", "", {}, [])
    kinds = (
        error_details_pb2.ErrorInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.ResourceInfo,
        error_details_pb2.RetryInfo,
        internal_pb2.PartialOutput,
    )
    for packed in status_pb2.Status.FromString(raw).details:  # type: ignore[arg-type]
        for kind in kinds:
            message = kind()
            if packed.Unpack(message):
                found.details.append(message)
                if isinstance(message, error_details_pb2.ErrorInfo):
                    found.reason, found.metadata = message.reason, dict(message.metadata)
    return found


@dataclass
class Replica:
    """A running replica and stubs to it."""

    tier: Tier
    channel: grpc.aio.Channel

    @property
    def generation(self) -> generation_pb2_grpc.GenerationServiceAsyncStub:
        return generation_pb2_grpc.GenerationServiceStub(self.channel)  # type: ignore[return-value]

    @property
    def control(self) -> replica_pb2_grpc.ReplicaServiceAsyncStub:
        return replica_pb2_grpc.ReplicaServiceStub(self.channel)  # type: ignore[return-value]

    async def state(self) -> replica_pb2.ReplicaState:
        """What WatchState says at this moment."""
        call = self.control.WatchState(replica_pb2.WatchStateRequest(router="test"))
        first = await call.read()
        call.cancel()
        return first.state  # type: ignore[union-attr,no-any-return]

    async def idle(self, within: float = 5.0) -> None:
        """Waits until nothing is charged and no block is in use: what must hold whenever no request lives."""

        async def empty() -> bool:
            state = await self.state()
            return not (state.committed_blocks or state.used_blocks or state.running or state.waiting)

        await until(empty, within, "all blocks are back")

    async def fails(self, request: generation_pb2.GenerateRequest, **kwargs: Any) -> Failed:
        """Runs a request that must fail and says how; no message may come before."""
        call = self.generation.Generate(request, **kwargs)
        found = await status(call)
        assert found.messages == 0, "a message came before the refusal"
        return found


async def rest(call: Any) -> list[generation_pb2.GenerateResponse]:
    """The messages of a stream that are left; raises its status where it fails."""
    found = []
    while (message := await call.read()) is not grpc.aio.EOF:
        found.append(message)
    return found


async def status(call: Any) -> Failed:
    """Reads a stream that must fail to its end and says how it did."""
    count = 0
    try:
        while await call.read() is not grpc.aio.EOF:
            count += 1
    except grpc.aio.AioRpcError as error:
        found = failed(error)
        found.messages = count
        return found
    raise AssertionError("the stream ended well")


def ask(max_tokens: int = 8, **fields: Any) -> generation_pb2.GenerateRequest:
    """A request for a made-up model, which never ends by itself."""
    fields.setdefault("token_ids", generation_pb2.TokenIds(ids=range(1000, 1040)))
    stop = fields.pop("stop", generation_pb2.StopConditions())
    stop.max_tokens = max_tokens
    return generation_pb2.GenerateRequest(stop=stop, **fields)


@contextlib.asynccontextmanager
async def replica(*args: str, script: str = "delay=0.005", name: str = "one") -> AsyncIterator[Replica]:
    """Starts a replica and waits until it is ready; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="pagemill-test-") as folder:
        flags = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--model", str(smollm2())]
        flags += ["--model-name", "smollm2", "--drain-settle", "0", "--fake-runner", f"vocab=49152,low=1000,{script}"]
        tier = Tier("pagemill_replica", name, [*flags, *args], Path(folder)).start()
        try:
            await tier.ready()
            channel = open_channel(tier.address)
            async with channel:
                yield Replica(tier, channel)
        finally:
            await asyncio.to_thread(tier.close)
