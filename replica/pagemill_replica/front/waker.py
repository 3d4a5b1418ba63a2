"""Wakes the writers of streams a few at a time.

An engine step brings tokens for all streams at once, and gRPC hands the loop one new call in each of its turns. Were
all writers woken in one turn, each turn would last as long as all their writes, and a burst of new calls would wait a
turn for each call before it.
"""

from __future__ import annotations

import asyncio
from collections import deque

BATCH = 8
"""Writers woken in one turn of the loop: about a millisecond of work."""


class Waker:
    """Sets events in order, at most `batch` in a turn."""

    def __init__(self, batch: int = BATCH) -> None:
        self._batch = batch
        self._waiting: deque[asyncio.Event] = deque()

    def wake(self, event: asyncio.Event) -> None:
        """Sets `event` in one of the next turns."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.append(event)

    def _turn(self) -> None:
        for _ in range(min(self._batch, len(self._waiting))):
            self._waiting.popleft().set()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
