"""Keeps readiness in step with the engine's progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pagemill_common import logs
from pagemill_replica.front.readiness import Progress, not_ready_because

_log = logs.get("pagemill.replica")


class ReadinessWatch:
    """Judges again and again, and tells when the judgement turns."""

    def __init__(
        self,
        progress: Callable[[], Progress],
        *,
        draining: Callable[[], bool],
        stall_after: float,
        clock: Callable[[], float],
        on_change: Callable[[bool], None],
        interval: float = 0.5,
    ) -> None:
        """`on_change` gets whether the replica is ready."""
        self._progress = progress
        self._draining = draining
        self._stall_after = stall_after
        self._clock = clock
        self._on_change = on_change
        self._interval = interval
        self._told = "starting"

    def why_not(self) -> str:
        """Why the replica is not ready at this moment; empty where it is."""
        return not_ready_because(
            self._progress(), draining=self._draining(), now=self._clock(), stall_after=self._stall_after
        )

    def judge(self) -> None:
        """Judges at once, and tells of a change."""
        reason = self.why_not()
        if reason == self._told:
            return
        was_ready, self._told = not self._told, reason
        if reason:
            _log.info("not ready", reason=reason)
        else:
            _log.info("ready")
        if was_ready != (not reason):
            self._on_change(not reason)

    async def run(self) -> None:
        """Judges every `interval` seconds until cancelled, whatever becomes of telling it."""
        while True:
            try:
                self.judge()
            except Exception as failure:
                _log.error("telling of readiness failed", exc_info=failure)
            await asyncio.sleep(self._interval)
