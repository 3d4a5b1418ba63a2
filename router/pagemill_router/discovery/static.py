"""Addresses given at start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import ClassVar


class StaticDiscovery:
    """A set that never changes. Which of its replicas live is for their `WatchState` streams to tell."""

    name: ClassVar[str] = "static"

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)

    async def watch(self) -> AsyncIterator[frozenset[str]]:
        """Yields the set once and then waits."""
        yield self._addresses
        await asyncio.Event().wait()
