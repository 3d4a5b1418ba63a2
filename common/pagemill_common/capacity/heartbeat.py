"""The replica's side of the pool: says what it has, again and again, and notices what was heard."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Protocol, Self

from pagemill_common import logs
from pagemill_common.capacity.errors import CapacityUnavailable
from pagemill_common.capacity.types import Beat, BeatReply, BeatStatus

_log = logs.get("pagemill.capacity")


class BeatPool(Protocol):
    """What the loop needs of a CapacityPool."""

    async def heartbeat(self, beat: Beat) -> BeatReply:
        """As CapacityPool.heartbeat."""
        ...


class HeartbeatLoop:
    """Sends a beat every `interval` seconds, spread by `jitter` of it, and soon after `nudge`; one beat is out at a
    time.

    `source` is called in the loop's own turn and returns what the replica has at that moment, with the reservation
    ids that it has seen and that no `on_reply` has yet reported as acknowledged: the owner of the ids forgets them
    only then. Joining the pool is logged. Redis may be gone for any time; that is logged once when it begins and once
    when it ends, and the next beat says everything anew. Leaving the context sends one last beat with `draining` set,
    after which the record expires.
    """

    def __init__(
        self,
        pool: BeatPool,
        source: Callable[[], Beat],
        *,
        interval: float = 0.2,
        jitter: float = 0.25,
        min_gap: float = 0.02,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_reply: Callable[[Beat, BeatReply], None] | None = None,
        on_unavailable: Callable[[CapacityUnavailable], None] | None = None,
    ) -> None:
        if not 0 < min_gap <= interval or not 0 <= jitter < 1:
            raise ValueError("0 < min_gap <= interval and 0 <= jitter < 1 must hold")
        self._pool = pool
        self._source = source
        self._interval = interval
        self._jitter = jitter
        self._min_gap = min_gap
        self._rng = rng or Random()
        self._clock = clock
        self._on_reply = on_reply
        self._on_unavailable = on_unavailable
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._seq = 0
        self._complaint = ""
        self._heard_at: float | None = None
        self.last_reply: BeatReply | None = None
        """The newest answer of the pool."""

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def seq(self) -> int:
        """Number of the newest beat."""
        return self._seq

    @property
    def silence(self) -> float | None:
        """Seconds since a beat was last acknowledged; None before the first."""
        return None if self._heard_at is None else self._clock() - self._heard_at

    def start(self) -> None:
        """Begins to beat."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="heartbeat")

    def nudge(self) -> None:
        """Something big has changed: the next beat comes at once, or right after the one that is out."""
        self._wake.set()

    async def stop(self) -> None:
        """Ends the loop with a last, draining beat."""
        if self._task is None or self._stopping:
            return
        self._stopping = True
        self._wake.set()
        await self._task
        await self._beat(replace(self._source(), draining=True))

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                await self._beat(self._source())
            except Exception as failure:
                # One beat is lost; a loop that ended here would take the replica out of the pool without a word.
                _log.error("a heartbeat failed", exc_info=failure)
            if self._stopping:
                return
            delay = self._interval * (1 + self._jitter * (2 * self._rng.random() - 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    # A gap also between nudged beats, so that a stream of changes cannot flood Redis.
                    await asyncio.sleep(min(self._min_gap, delay))
                    await self._wake.wait()

    async def _beat(self, content: Beat) -> None:
        self._seq += 1
        beat = replace(content, seq=self._seq)
        try:
            reply = await self._pool.heartbeat(beat)
        except CapacityUnavailable as error:
            self._complain("heartbeats do not reach redis", reason=str(error), kind="unavailable")
            if self._on_unavailable is not None:
                self._on_unavailable(error)
            return
        self.last_reply = reply
        if reply.status is BeatStatus.REFUSED:
            self._complain("the pool refuses this replica", reason=reply.message, kind=reply.message)
        elif reply.acknowledged:
            self._heard(beat)
        if self._on_reply is not None:
            self._on_reply(beat, reply)

    def _heard(self, beat: Beat) -> None:
        if self._heard_at is None:
            _log.info("joined the pool", replica=beat.name, address=beat.address, epoch=beat.epoch)
        elif self._complaint:
            _log.info("heartbeats reach the pool again")
        self._complaint = ""
        self._heard_at = self._clock()

    def _complain(self, message: str, *, reason: str, kind: str) -> None:
        if self._complaint != kind:
            self._complaint = kind
            _log.warning(message, reason=reason)
