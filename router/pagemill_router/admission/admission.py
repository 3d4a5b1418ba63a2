"""Admission: Redis while it can be trusted, else local mode. One interface, and no error because Redis is gone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable

from pagemill_common import capacity, logs
from pagemill_common.capacity.figures import redis_trusted
from pagemill_router.admission.local import admit_locally
from pagemill_router.admission.types import Answer, Ask, Grant, Mode, NoRoom
from pagemill_router.fleet.sends import Sends

_log = logs.get("pagemill.router.admission")

_FRESH = (capacity.Standing.READY, capacity.Standing.DRAINING)

PROBE_SECONDS = 0.5
"""How often Redis is looked at while no request asks it."""
SETTLE_SECONDS = 1.5
"""So long a replica has to be watched before what Redis knows of it says anything of Redis: its first heartbeat may
still be on the way."""


class RedisBooks:
    """The pool in Redis with what shields it: a batcher and a breaker."""

    def __init__(
        self, pool: capacity.CapacityPool, batcher: capacity.ReserveBatcher, breaker: capacity.Breaker
    ) -> None:
        self.pool = pool
        self.batcher = batcher
        self.breaker = breaker


class Admission:
    """Asks Redis or decides locally, and keeps the book of what this router has sent.

    A grant is given back with `release` where nothing was sent, and with `settle` in any case when its attempt ends.
    """

    def __init__(
        self,
        books: RedisBooks | None,
        sends: Sends,
        *,
        clock: Callable[[], float],
        told: Callable[[Iterable[capacity.Figures]], None] = lambda figures: None,
        failed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`told` gets every reply's figures, `failed` the reason of every failure of Redis."""
        self.mode = Mode.LOCAL if books is None else Mode.REDIS
        """How the next request is admitted, as far as the last look at Redis tells."""
        self._books = books
        self._sends = sends
        self._clock = clock
        self._told = told
        self._failed = failed
        self._releases: set[asyncio.Task[None]] = set()
        self._looked_at = float("-inf")
        self._met: dict[str, float] = {}
        """When each replica was first watched or a candidate, by `name:epoch`."""

    @property
    def idle(self) -> bool:
        """Nothing is on its way to a replica, asked for or being given back."""
        asking = self._books is not None and not self._books.batcher.idle
        return not (len(self._sends) or self._releases or asking)

    async def admit(self, ask: Ask) -> Answer:
        """Room on one of the candidates, or the news that there is none."""
        answer = await self._by_redis(ask) if self._books is not None else None
        if answer is None:
            answer = admit_locally(ask, self._sends.blocks, _draw_id())
        if isinstance(answer, Grant):
            self._sends.add(answer.candidate.replica.key, answer.reservation_id, answer.candidate.need)
        return answer

    def settle(self, grant: Grant) -> None:
        """The attempt has ended, however: nothing of it is on its way."""
        self._sends.covered(grant.candidate.replica.key, (grant.reservation_id,))

    def release(self, grant: Grant) -> None:
        """The reservation is not needed. Best effort, in the background; its expiry does it otherwise."""
        self.settle(grant)
        if grant.mode is Mode.REDIS and self._books is not None:
            self._give_back(grant.reservation_id, grant.candidate.replica.key)

    async def keep_mode(self, watched: Callable[[], Collection[str]]) -> None:
        """Lets the mode follow Redis also while no request asks it, until cancelled.

        `watched` gives the `name:epoch` of the replicas whose state streams are up.
        """
        while self._books is not None:
            await asyncio.sleep(PROBE_SECONDS)
            if self._clock() - self._looked_at >= PROBE_SECONDS:
                await self.look(watched)

    async def look(self, watched: Callable[[], Collection[str]]) -> None:
        """Looks once whether Redis answers as fast as a request needs it to, and knows enough; sets the mode."""
        self._meet(watched())
        books = self._books
        if books is None or not books.breaker.allow():
            return
        try:
            members = await books.pool.members(limit=books.pool.settings.reserve_deadline)
        except capacity.CapacityUnavailable as trouble:
            self._gone(trouble.reason.value, str(trouble))
            return
        # As they are by the time of the answer: one that has left meanwhile is no witness.
        present = watched()
        self._met = {key: at for key, at in self._met.items() if key in present}
        self._trust(present, _fresh(member.figures for member in members))

    async def close(self) -> None:
        """Waits for releases under way, and for those of reserves whose callers have gone."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=1.0)
        if self._books is not None:
            await self._books.batcher.aclose()

    async def _by_redis(self, ask: Ask) -> Answer | None:
        """Redis's answer; None where it is gone or cannot be trusted."""
        assert self._books is not None
        if not self._books.breaker.allow():
            return None
        by_key = {one.replica.key: one for one in ask.candidates}
        request = capacity.Reserve(
            id=_draw_id(),
            candidates=tuple(capacity.Candidate(key, one.need, one.cost) for key, one in by_key.items()),
            priority=ask.priority,
            band=ask.band,
            hold=ask.hold,
        )
        self._looked_at = self._clock()
        self._meet(by_key.keys())
        reply = await self._reserve(request)
        if reply is None:
            return None
        self._told(reply.figures)
        # Of replicas that have only just come Redis may know nothing yet, which says nothing of Redis.
        fresh = _fresh(reply.figures)
        if not self._trust(by_key.keys(), fresh) or not redis_trusted(by_key.keys(), fresh):
            if isinstance(reply, capacity.Granted):
                self._give_back(reply.id, reply.replica)
            return None
        shown = _show(reply)
        if isinstance(reply, capacity.Granted):
            usable_until = self._clock() + reply.expires_in - capacity.SEND_MARGIN
            return Grant(by_key[reply.replica], reply.id, Mode.REDIS, usable_until, shown)
        return NoRoom(Mode.REDIS, reply.reason.value, reply.retry_after, shown)

    async def _reserve(self, request: capacity.Reserve) -> capacity.ReserveReply | None:
        assert self._books is not None
        try:
            reply = await self._books.batcher.reserve(request)
        except capacity.CapacityUnavailable as trouble:
            self._gone(trouble.reason.value, str(trouble))
            return None
        if isinstance(reply, capacity.Refused) and reply.reason is capacity.RefusedReason.LATE:
            self._gone("late", "late: the reserve came after its time")
            return None
        return reply

    def _gone(self, reason: str, told: str) -> None:
        assert self._books is not None
        self._books.breaker.failed(reason)
        self._failed(reason)
        self._switch(Mode.LOCAL, told)

    def _meet(self, keys: Iterable[str]) -> None:
        now = self._clock()
        for key in keys:
            self._met.setdefault(key, now)

    def _trust(self, watched: Collection[str], fresh: Collection[str]) -> bool:
        """Takes an answer by the replicas it knows as fresh.

        One that knows too few of those that have been here a while is as good as none.
        """
        assert self._books is not None
        now = self._clock()
        settled = [key for key in watched if now - self._met.get(key, now) >= SETTLE_SECONDS]
        trusted = redis_trusted(settled, fresh)
        if trusted:
            self._books.breaker.succeeded()
            self._switch(Mode.REDIS, "redis answers")
        else:
            self._books.breaker.trip("stale")
            self._failed("stale")
            self._switch(Mode.LOCAL, "stale: fewer than half of the replicas report to redis")
        return trusted

    def _give_back(self, reservation_id: str, *replicas: str) -> None:
        task = asyncio.create_task(self._release(reservation_id, *replicas), name="release")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, reservation_id: str, *replicas: str) -> None:
        assert self._books is not None
        try:
            await self._books.pool.release(reservation_id, *replicas)
        except capacity.CapacityUnavailable as trouble:
            _log.debug("release failed", reason=trouble.reason.value)

    def _switch(self, mode: Mode, reason: str) -> None:
        if mode is not self.mode:
            tell = _log.warning if mode is Mode.LOCAL else _log.info
            tell("admission mode", mode=mode.value, was=self.mode.value, reason=reason)
            self.mode = mode


def _fresh(figures: Iterable[capacity.Figures]) -> set[str]:
    return {one.replica for one in figures if one.standing in _FRESH}


def _draw_id() -> str:
    return secrets.token_hex(12)


def _show(reply: capacity.ReserveReply) -> str:
    """The reply in one line, for the span."""
    figures = "; ".join(
        f"{one.replica.partition(':')[0]} {one.standing.value} capacity {one.capacity} committed {one.committed}"
        f" pending {one.pending}"
        for one in reply.figures[:16]
    )
    if isinstance(reply, capacity.Granted):
        return f"granted {reply.need} blocks on {reply.replica} for {reply.expires_in:.3f} s: {figures}"
    return f"refused, {reply.reason.value}, retry after {reply.retry_after:.3f} s: {figures}"
