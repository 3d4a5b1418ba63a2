"""A Redis of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pagemill_common.capacity.server import RedisServer


@pytest.fixture(params=["valkey", "redis"])
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server
