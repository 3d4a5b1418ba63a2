"""A replica that many tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from support.replica import Replica, replica


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared() -> AsyncIterator[Replica]:
    """Many tests use it and none may harm it: a step takes 5 ms."""
    async with replica("--reflection", script="delay=0.005,context=2048,blocks=256") as one:
        yield one
