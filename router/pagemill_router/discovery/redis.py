"""Replicas that report to Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import ClassVar

from pagemill_common import logs
from pagemill_common.capacity import CapacityPool, CapacityUnavailable

_log = logs.get("pagemill.router.discovery")


class RedisDiscovery:
    """The pool's members, asked for every `interval` seconds with jitter.

    A replica that has stopped reporting leaves the set when its record expires. While Redis is gone nothing is yielded,
    so the last known set stands.
    """

    name: ClassVar[str] = "redis"

    def __init__(self, pool: CapacityPool, rng: random.Random, interval: float = 1.0) -> None:
        self._pool = pool
        self._rng = rng
        self._interval = interval

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Yields the addresses of all members at every change."""
        last: frozenset[str] | None = None
        reachable = True
        while True:
            try:
                found = frozenset(member.address for member in await self._pool.members())
            except CapacityUnavailable as trouble:
                if reachable:
                    _log.warning("discovery cannot reach redis", reason=trouble.reason.value)
                reachable = False
            else:
                if not reachable:
                    _log.info("discovery reaches redis again")
                reachable = True
                if found != last:
                    last = found
                    yield found
            await asyncio.sleep(self._interval * self._rng.uniform(0.8, 1.2))
