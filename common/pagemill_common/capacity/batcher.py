"""Turns the reserves of many concurrent requests into few calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagemill_common import logs
from pagemill_common.capacity.errors import CapacityUnavailable, UnavailableReason
from pagemill_common.capacity.settings import CapacitySettings
from pagemill_common.capacity.types import MAX_BATCH, Granted, Reserve, ReserveReply

_log = logs.get("pagemill.capacity")


class ReservePool(Protocol):
    """What the batcher needs of a CapacityPool."""

    settings: CapacitySettings

    async def reserve(self, requests: Sequence[Reserve], *, limit: float | None = None) -> list[ReserveReply]:
        """As CapacityPool.reserve."""
        ...

    async def release(self, reservation_id: str, *replicas: str) -> bool:
        """As CapacityPool.release."""
        ...


@dataclass(slots=True)
class _Asked:
    request: Reserve
    answer: asyncio.Future[ReserveReply]
    until: float


class ReserveBatcher:
    """Collects the reserves of one turn of the event loop, and those that come while all calls are out, into calls of
    up to 32.

    Each caller gets its own reply or error, within the reserve deadline. A caller that is cancelled before its call
    leaves is taken out; one that is cancelled later has its reservation released when the reply comes.
    """

    def __init__(
        self, pool: ReservePool, *, calls_at_once: int = 2, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if calls_at_once < 1:
            raise ValueError("calls_at_once must be at least 1")
        self._pool = pool
        self._calls_at_once = calls_at_once
        self._monotonic = monotonic
        self._queue: deque[_Asked] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._closed = False

    @property
    def idle(self) -> bool:
        """Nothing is queued, out or being released."""
        return not (self._queue or self._calls or self._releases)

    async def reserve(self, request: Reserve) -> ReserveReply:
        """As CapacityPool.reserve, for one request. Raises CapacityUnavailable."""
        if self._closed:
            raise CapacityUnavailable(UnavailableReason.OTHER, "the batcher is closed")
        loop = asyncio.get_running_loop()
        asked = _Asked(request, loop.create_future(), self._monotonic() + self._pool.settings.reserve_deadline)
        self._queue.append(asked)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._send)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._abandon(asked)
            raise

    async def aclose(self) -> None:
        """Fails what is queued, waits for what is out and for its releases."""
        self._closed = True
        for asked in self._queue:
            if not asked.answer.done():
                asked.answer.set_exception(CapacityUnavailable(UnavailableReason.OTHER, "the batcher is closed"))
        self._queue.clear()
        while tasks := self._calls | self._releases:
            await asyncio.wait(tasks)

    def _send(self) -> None:
        self._scheduled = False
        while len(self._calls) < self._calls_at_once and (batch := self._next_batch()):
            task = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(task)
            task.add_done_callback(self._call_ended)

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._send()

    def _next_batch(self) -> list[_Asked]:
        """The oldest requests that are still wanted and in time. An id that is in the batch already waits for the
        next call.
        """
        batch: list[_Asked] = []
        ids: set[str] = set()
        again: list[_Asked] = []
        while self._queue and len(batch) < MAX_BATCH:
            asked = self._queue.popleft()
            if asked.answer.done():
                continue
            if asked.until <= self._monotonic():
                asked.answer.set_exception(CapacityUnavailable(UnavailableReason.TIMEOUT, "no call was free in time"))
            elif asked.request.id in ids:
                again.append(asked)
            else:
                batch.append(asked)
                ids.add(asked.request.id)
        self._queue.extendleft(reversed(again))
        return batch

    async def _call(self, batch: list[_Asked]) -> None:
        left = min(asked.until for asked in batch) - self._monotonic()
        try:
            replies = await self._pool.reserve([asked.request for asked in batch], limit=max(left, 0.001))
        except CapacityUnavailable as error:
            for asked in batch:
                if not asked.answer.done():
                    asked.answer.set_exception(CapacityUnavailable(error.reason, str(error)))
            return
        except BaseException as error:
            # A bug, or the loop closing: nobody may wait for ever, and no caller is cancelled because the call was.
            for asked in batch:
                if not asked.answer.done():
                    cancelled = CapacityUnavailable(UnavailableReason.OTHER, "the call was cancelled")
                    asked.answer.set_exception(error if isinstance(error, Exception) else cancelled)
            raise
        for asked, reply in zip(batch, replies, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(reply)
            elif isinstance(reply, Granted):
                self._release_later(reply)

    def _abandon(self, asked: _Asked) -> None:
        """Takes care of a reply that was set before its caller, cancelled meanwhile, could wake."""
        answer = asked.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            reply = answer.result()
            if isinstance(reply, Granted):
                self._release_later(reply)

    def _release_later(self, granted: Granted) -> None:
        task = asyncio.get_running_loop().create_task(self._release(granted))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, granted: Granted) -> None:
        try:
            await self._pool.release(granted.id, granted.replica)
        except CapacityUnavailable as error:
            # It expires by itself.
            _log.debug("release failed", reservation=granted.id, reason=str(error))
