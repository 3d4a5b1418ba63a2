"""Finds a call its place: policy, then admission, then the waiting room until there is one.

pick --nobody eligible--> wait a little for a replica --> UNAVAILABLE
|
v
admit --no room--> waiting room (bounded, ordered) --news--> pick ...
|
v
placed
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pagemill_common import errors
from pagemill_common.telemetry import names
from pagemill_router.admission.admission import Admission
from pagemill_router.admission.types import Ask, Grant
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.link import ReplicaLink
from pagemill_router.placement.job import Job
from pagemill_router.placement.undelivered import undelivered
from pagemill_router.policies.base import Candidate, Policy
from pagemill_router.pulse import Pulse
from pagemill_router.telemetry import RouterTelemetry
from pagemill_router.waiting.room import QueueFullError, Waiter, WaitingRoom

RETRY_WITHOUT_REPLICA = 1.0
"""Seconds after which callers are told to try again while no replica is ready."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A call's place."""

    link: ReplicaLink
    grant: Grant


class Placer:
    """Places calls, and wakes those that wait."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        admission: Admission,
        room: WaitingRoom,
        telemetry: RouterTelemetry,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        grace: float = 2.0,
        hold_after: float = 1.0,
    ) -> None:
        """`grace`: seconds to wait for a ready replica; `hold_after`: seconds of waiting after which room is held."""
        self.policy = policy
        self.room = room
        self._fleet = fleet
        self._admission = admission
        self._telemetry = telemetry
        self._clock = clock
        self._rng = rng
        self._grace = grace
        self._hold_after = hold_after
        self._outages: dict[str, float] = {}
        self._changes = Pulse()
        fleet.on_change(self._on_change)

    def _on_change(self, roomier: bool) -> None:
        self._changes.fire()
        if roomier:
            self.room.news()

    async def place(
        self, job: Job, excluded: frozenset[str] = frozenset(), avoid: frozenset[str] = frozenset()
    ) -> Placed:
        """A replica with room for the call.

        `excluded` replicas have failed it and get no second try; `avoid` ones have just said that they are full, and
        are asked again only after a wait. Raises the StatusError for a full queue or for want of a replica.
        """
        heard, tried = self.room.news_heard, not self.room.must_wait(job.model, job.priority)
        if tried:
            placed = await self._try(job, excluded, avoid)
            if placed is not None:
                return placed
        began = self._clock()
        with (
            self._telemetry.span(names.SPAN_ROUTER_QUEUE),
            self._line(job, eager=not tried or heard != self.room.news_heard) as waiter,
        ):
            try:
                while True:
                    await waiter.turn()
                    hold = job.call_id if self._clock() - began > self._hold_after else ""
                    placed = await self._try(job, excluded, hold=hold)
                    if placed is not None:
                        waiter.served = True
                        return placed
            finally:
                self._telemetry.waited(job.model, self._clock() - began)

    def rank(self, job: Job, excluded: frozenset[str] = frozenset()) -> list[Candidate]:
        """What the policy says."""
        began = self._clock()
        candidates = self.policy.pick(self._fleet.snapshot(), job.route(excluded), self._rng)
        self._telemetry.decided(self.policy.name, self._clock() - began)
        return candidates

    @contextmanager
    def _line(self, job: Job, *, eager: bool) -> Iterator[Waiter]:
        left = job.deadline - self._clock()
        try:
            with self.room.place(job.model, job.priority, job.arrived, left, eager=eager) as waiter:
                yield waiter
        except QueueFullError as full:
            raise errors.queue_full(full.retry_after, f"no replica has room and {full}") from full

    async def _try(
        self, job: Job, excluded: frozenset[str], avoid: frozenset[str] = frozenset(), hold: str = ""
    ) -> Placed | None:
        candidates = self.rank(job, excluded | avoid)
        if not candidates:
            if avoid:
                return None
            candidates = await self._appearance(job, excluded)
        self._outages.pop(job.model, None)
        began = self._clock()
        with self._telemetry.span(names.SPAN_ROUTER_RESERVE) as span:
            answer = await self._admission.admit(Ask(candidates, self.policy.band, job.priority, hold))
            granted = isinstance(answer, Grant)
            span.set_attribute(names.ATTR_ADMISSION_MODE, answer.mode.value)
            span.set_attribute(names.ATTR_RESERVE_REPLY, answer.reply)
            span.set_attribute(names.ATTR_POLICY, self.policy.name)
            if isinstance(answer, Grant):
                span.set_attribute(names.ATTR_REPLICA, answer.candidate.replica.name)
                span.set_attribute(names.ATTR_NEED_BLOCKS, answer.candidate.need)
        self._telemetry.reserved(answer.mode.value, "granted" if granted else "no room", self._clock() - began)
        if not isinstance(answer, Grant):
            return None
        link = self._fleet.by_key(answer.candidate.replica.key)
        if link is None or answer.usable_until <= self._clock():
            self._admission.release(answer)
            self.room.news(job.model)
            return None
        return Placed(link, answer)

    async def _appearance(self, job: Job, excluded: frozenset[str]) -> list[Candidate]:
        """The candidates as soon as there are any; UNAVAILABLE when the grace is over.

        The grace runs from the arrival or from the beginning of the want, whichever is later, so that a queue does not
        wait it out one after the other.
        """
        while True:
            candidates = self.rank(job, excluded)
            if candidates:
                return candidates
            if self._fleet.snapshot().ready(job.model):
                self._outages.pop(job.model, None)
                since = job.last_failure_at
            else:
                since = self._outages.setdefault(job.model, self._clock())
            left = max(since, job.arrived) + self._grace - self._clock()
            if left <= 0:
                raise self._want(job, excluded)
            try:
                async with asyncio.timeout(left):
                    await self._changes.wait()
            except TimeoutError:
                continue

    def _want(self, job: Job, excluded: frozenset[str]) -> errors.StatusError:
        known = self._fleet.snapshot().of_model(job.model)
        if any(view.ready and view.key in excluded for view in known):
            return undelivered("every ready replica has failed this call")
        if any(view.ready for view in known):
            return errors.no_replica(RETRY_WITHOUT_REPLICA, f"no ready replica can hold {job.total_blocks} blocks")
        standings = ", ".join(f"{view.name}: {view.reason or view.standing.value}" for view in known[:4])
        text = f"no replica of {job.model} is ready" + (f" ({standings})" if standings else "")
        return errors.no_replica(RETRY_WITHOUT_REPLICA, text)
