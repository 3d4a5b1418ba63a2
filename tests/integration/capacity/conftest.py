"""Real servers of both kinds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis
from integration.capacity.bench import Bench

from pagemill_common.capacity.server import RedisServer

KINDS = ("valkey", "redis")


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server that tests of this folder share; nobody harms it."""
    with RedisServer(request.param) as running:
        yield running


@pytest.fixture
def bench(server: RedisServer) -> Iterator[Bench]:
    client = redis.Redis.from_url(server.url)
    yield Bench(client)
    client.close()


@pytest.fixture
def pool_name() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A server of the test's own, to be harmed."""
    with RedisServer(request.param) as running:
        yield running
