"""Gives up on an engine that hangs, so that the process ends and is started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagemill_replica.front.readiness import Progress, stall_text, stalled_for


class HangWatch:
    """Looks again and again whether the engine has stalled for longer than `limit` seconds.

    It has to have stalled at two looks in a row: a process that was itself stopped for a while finds the steps of
    meanwhile only once its loop has run.
    """

    def __init__(
        self, progress: Callable[[], Progress], *, limit: float, clock: Callable[[], float], interval: float = 0.5
    ) -> None:
        self._progress = progress
        self._limit = limit
        self._clock = clock
        self._interval = interval
        self._suspected_at: float | None = None

    def look(self) -> str:
        """Why the engine is given up on; empty where it is not."""
        progress, now = self._progress(), self._clock()
        stalled = stalled_for(progress, now)
        before, self._suspected_at = self._suspected_at, progress.last_step if stalled > self._limit else None
        if self._suspected_at is None or before != self._suspected_at:
            return ""
        return stall_text(stalled)

    async def wait(self) -> str:
        """Returns why, as soon as the engine is given up on."""
        while not (reason := self.look()):  # noqa: ASYNC110 - what is looked for is that nothing happens
            await asyncio.sleep(self._interval)
        return reason
