"""The waiting room: one lane a model, so that a full model holds up no other.

Only the first of a lane tries for room, when there is news (a replica spoke, a stream ended) or after a jittered pause,
since another router's stream may have ended unheard. The waiting task is the caller's own: when it is cancelled, its
ticket leaves with it and the next in line is woken.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pagemill_router.waiting.pace import Pace


class QueueFullError(Exception):
    """No place to wait, or no point in waiting; `retry_after` seconds is the estimate."""

    def __init__(self, retry_after: float, message: str) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(slots=True, order=True)
class Ticket:
    """A place in a lane: more urgent first, then first come."""

    rank: tuple[int, float, int]
    """Priority negated, arrival, and a number that tells apart those who came together."""
    woken: asyncio.Event = field(compare=False, default_factory=asyncio.Event)


class Lane:
    """Those who wait for one model."""

    def __init__(self, clock: Callable[[], float], rng: random.Random, pause: float) -> None:
        self._clock = clock
        self._rng = rng
        self._pause = pause
        self._tickets: list[Ticket] = []
        self.pace = Pace()

    def __len__(self) -> int:
        return len(self._tickets)

    def ahead_of(self, priority: int) -> int:
        """How many wait that one who comes now with this priority would stand behind."""
        return sum(1 for ticket in self._tickets if ticket.rank[0] <= -priority)

    def join(self, ticket: Ticket, *, eager: bool) -> None:
        """Stands in line; `eager` where it should try as soon as it is first."""
        if not self._tickets:
            self.pace.begin(self._clock())
        bisect.insort(self._tickets, ticket)
        if eager:
            ticket.woken.set()

    def leave(self, ticket: Ticket) -> None:
        """Leaves the line from any place; the first of those left may try at once."""
        del self._tickets[bisect.bisect_left(self._tickets, ticket)]
        self.news()

    def news(self) -> None:
        """There may be room: the first may try."""
        if self._tickets:
            self._tickets[0].woken.set()

    async def turn(self, ticket: Ticket) -> None:
        """Returns when the ticket is first and has reason to try."""
        while True:
            # Only the first has a pause to end: the others sleep until they are first.
            pause = self._pause * self._rng.uniform(0.5, 1.5) if self._tickets[0] is ticket else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await ticket.woken.wait()
            ticket.woken.clear()
            if self._tickets[0] is ticket:
                return


class WaitingRoom:
    """All lanes, with one bound on how many wait in them together."""

    def __init__(self, limit: int, clock: Callable[[], float], rng: random.Random, *, retry_pause: float = 0.1) -> None:
        self._limit = limit
        self._clock = clock
        self._rng = rng
        self._retry_pause = retry_pause
        self._lanes: dict[str, Lane] = {}
        self._order = itertools.count()
        self.length = 0
        self.news_heard = 0
        """How often there has been news: whoever tries first and waits then can tell whether it has missed any."""

    def must_wait(self, model: str, priority: int) -> bool:
        """Somebody waits for this model who goes first."""
        lane = self._lanes.get(model)
        return lane is not None and lane.ahead_of(priority) > 0

    def news(self, model: str | None = None) -> None:
        """There may be room for this model, or for any."""
        self.news_heard += 1
        for name, lane in self._lanes.items():
            if model is None or name == model:
                lane.news()

    def estimate(self, model: str, priority: int = 0) -> float:
        """Seconds until one who comes now would get room, as far as can be told."""
        lane = self._lanes.get(model)
        return Pace().wait(1, 0.0) if lane is None else lane.pace.wait(lane.ahead_of(priority) + 1, self._clock())

    @contextmanager
    def place(
        self, model: str, priority: int, arrived: float, time_left: float | None, *, eager: bool = True
    ) -> Iterator[Waiter]:
        """A place in line until the block is left; QueueFullError where there is none or it would be in vain.

        The place goes by `arrived`, so that a call whose replica turned out to be full is not sent to the end. One that
        is not `eager` has tried in vain and waits for news or the pause also where it is first.
        """
        lane = self._lanes.get(model) or Lane(self._clock, self._rng, self._retry_pause)
        position = lane.ahead_of(priority) + 1
        if self.length >= self._limit:
            raise QueueFullError(self.estimate(model, priority), f"{self.length} requests wait already")
        if lane.pace.hopeless(position, self._clock(), time_left):
            wait = self.estimate(model, priority)
            raise QueueFullError(wait, f"the wait is about {wait:.1f} s, longer than the time left")
        self._lanes[model] = lane
        ticket = Ticket((-priority, arrived, next(self._order)))
        lane.join(ticket, eager=eager)
        self.length += 1
        waiter = Waiter(lane, ticket)
        try:
            yield waiter
        finally:
            self.length -= 1
            if waiter.served:
                lane.pace.depart(self._clock())
            lane.leave(ticket)
            if not lane:
                self._lanes.pop(model, None)


class Waiter:
    """One who waits."""

    def __init__(self, lane: Lane, ticket: Ticket) -> None:
        self._lane = lane
        self._ticket = ticket
        self.served = False
        """Set by the owner when it leaves because it got room."""

    async def turn(self) -> None:
        """Returns when it may try for room."""
        await self._lane.turn(self._ticket)
