"""Routers in the test's own loop, over fake replicas and a real Valkey."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import pytest
from integration.router.dump import bounded, state_of, tasks

from pagemill.v1 import GenerationServiceStub, admin_pb2_grpc
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import telemetry
from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_router.app import Router
from pagemill_router.settings import RouterSettings
from support.fake_replica import FakeReplica, until


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    """A server that nobody harms."""
    with RedisServer("valkey") as running:
        yield running


@pytest.fixture
def own_valkey() -> Iterator[RedisServer]:
    """A server of the test's own, to be harmed."""
    with RedisServer("valkey") as running:
        yield running


@pytest.fixture
async def pool(valkey: RedisServer) -> AsyncIterator[CapacityPool]:
    """A pool of the test's own."""
    async with CapacityPool(valkey.url, uuid.uuid4().hex) as opened:
        yield opened


TEST_SECONDS = 100.0
"""The longest a test may use a router: less than pytest's own limit, which knows nothing of tasks."""
END_SECONDS = 30.0


@dataclass
class Heard:
    """All that a caller saw of one stream."""

    started: list[pb.Started] = field(default_factory=list)
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finished: list[pb.Finished] = field(default_factory=list)
    error: grpc.aio.AioRpcError | None = None


class Caller:
    """Talks to one router."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.channel = grpc.aio.insecure_channel(router.server.address)
        self.generation = GenerationServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def ask(self, request: pb.GenerateRequest, **options: object) -> Heard:
        """Reads one stream to its end, good or bad."""
        heard = Heard()
        try:
            async for message in self.generation.Generate(request, **options):
                event = message.WhichOneof("event")
                if event == "started":
                    heard.started.append(message.started)
                elif event == "delta":
                    heard.text += message.delta.text
                    heard.token_ids += message.delta.token_ids
                elif event == "finished":
                    heard.finished.append(message.finished)
        except grpc.aio.AioRpcError as error:
            heard.error = error
        return heard

    async def idle(self) -> None:
        """Nothing of any call is left in the router."""
        async with bounded(10.0, "coming to rest", lambda: state_of(self.router)):
            await until(lambda: self.router.idle, 60.0)


def question(text: str = "hello", max_tokens: int = 5, **fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, stop=pb.StopConditions(max_tokens=max_tokens), **fields)  # type: ignore[arg-type]


class RunRouter(Protocol):
    """Starts a router over replicas and waits until it sees all of them ready."""

    def __call__(
        self, *replicas: FakeReplica, redis_url: str | None = None, pool: str = "default", **settings: object
    ) -> _Running: ...


class _Running(Protocol):
    async def __aenter__(self) -> Caller: ...

    async def __aexit__(self, *failure: object) -> None: ...


@asynccontextmanager
async def _run_router(
    *replicas: FakeReplica, redis_url: str | None = None, pool: str = "default", **settings: object
) -> AsyncIterator[Caller]:
    addresses = () if redis_url else tuple(one.address for one in replicas)
    given: dict[str, object] = {
        "listen": "127.0.0.1:0",
        "name": f"router-{uuid.uuid4().hex[:6]}",
        "replicas": addresses,
        "redis_url": redis_url,
        "pool": pool,
        "drain_settle": 0.0,
        "drain_grace": 5.0,
        "discovery_interval": 0.1,
        **settings,
    }
    observed = telemetry.setup("test-router")
    router = Router(RouterSettings(**given), observed)  # type: ignore[arg-type]
    running = asyncio.create_task(router.run())
    try:
        await until(lambda: bool(router.server.port) or running.done())
        await until(lambda: sum(view.ready for view in router.fleet.snapshot().replicas) == len(replicas))
        caller = Caller(router)
        async with bounded(TEST_SECONDS, "the test", lambda: state_of(router)):
            yield caller
        await caller.channel.close()
    finally:
        router.drain()
        router.drain()
        await asyncio.wait({running}, timeout=END_SECONDS)
        assert running.done(), f"the router does not end\n{state_of(router)}\n{tasks()}"
        await running
        observed.shutdown()


@pytest.fixture
def run_router() -> RunRouter:
    return _run_router
