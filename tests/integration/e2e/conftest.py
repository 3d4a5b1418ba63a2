"""A Redis of each kind, and fleets on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pagemill_common.capacity.server import RedisServer
from support.fleet import Fleet, fleet


@pytest.fixture(params=["valkey", "redis"])
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    with RedisServer("valkey") as server:
        yield server


@pytest.fixture
async def valkey_fleet(valkey: RedisServer) -> AsyncIterator[Fleet]:
    async with fleet(valkey.url) as made:
        yield made
