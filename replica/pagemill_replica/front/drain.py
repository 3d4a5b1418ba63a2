"""How a replica leaves: each stage at its time, streams first.

    begin            settle               until all streams ended             margin before the end
      |  not ready,    |  new calls refused   |  or, at the latest,  -------->  |  stragglers closed
      |  calls taken   |  with DRAINING       v  done                            v  done

Health says NOT_SERVING and heartbeats say draining from the first moment, and calls are still taken while routers
notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pagemill_common import logs

_log = logs.get("pagemill.replica")


@dataclass(frozen=True, slots=True)
class DrainTimes:
    """Seconds from the beginning of a drain."""

    settle: float
    """New calls are taken until then."""
    close: float
    """Streams that still run are closed then, so that routers resume them elsewhere before the process is killed."""

    @classmethod
    def of(cls, *, settle: float, grace: float, margin: float) -> DrainTimes:
        """`grace`: what a stream may take at most; `margin`: how long before that stragglers are closed."""
        return cls(settle, max(settle, grace - margin))


class Drain:
    """The drain of one replica. `begin` may be called again and does nothing then."""

    def __init__(
        self,
        times: DrainTimes,
        *,
        clock: Callable[[], float],
        live: Callable[[], int],
        on_begin: Callable[[], None],
        idle: Callable[[], Awaitable[None]],
        close_stragglers: Callable[[], int],
    ) -> None:
        """`live` counts requests and `idle` waits until there is none; `on_begin` turns readiness off;
        `close_stragglers` ends streams and counts them.
        """
        self._times = times
        self._clock = clock
        self._live = live
        self._on_begin = on_begin
        self._close_stragglers = close_stragglers
        self._idle = idle
        self._begun_at: float | None = None
        self._begun = asyncio.Event()

    @property
    def draining(self) -> bool:
        """It has begun."""
        return self._begun_at is not None

    @property
    def refusing(self) -> bool:
        """New calls are refused: it has begun and settled."""
        return self._begun_at is not None and self._clock() - self._begun_at >= self._times.settle

    @property
    def live_requests(self) -> int:
        """Requests that it waits for."""
        return self._live()

    @property
    def seconds_left(self) -> float:
        """Until stragglers are closed, at most."""
        begun = self._clock() if self._begun_at is None else self._begun_at
        return max(0.0, begun + self._times.close - self._clock())

    def begin(self, reason: str) -> None:
        """Starts the drain."""
        if self._begun_at is not None:
            return
        self._begun_at = self._clock()
        # First, since it must run whatever becomes of telling others.
        self._begun.set()
        _log.info("draining", reason=reason, live=self._live(), seconds=self._times.close)
        self._on_begin()

    async def run(self) -> None:
        """Waits for the beginning and returns when the last stream has ended or been closed."""
        await self._begun.wait()
        await asyncio.sleep(self._times.settle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.seconds_left):
                await self._idle()
        closed = self._close_stragglers()
        _log.info("drained", closed_streams=closed)
