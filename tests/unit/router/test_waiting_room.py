"""The waiting room: order, bound, wake-ups, estimates."""

from __future__ import annotations

import asyncio
import random

import pytest

from pagemill_router.waiting.pace import SURE, UNKNOWN_WAIT, Pace
from pagemill_router.waiting.room import QueueFullError, WaitingRoom


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_room(limit: int = 100, pause: float = 1000.0) -> tuple[WaitingRoom, Clock]:
    clock = Clock()
    return WaitingRoom(limit, clock, random.Random(1), retry_pause=pause), clock


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Crowd:
    """Waiters that take one unit of room each, when there is any."""

    def __init__(self, room: WaitingRoom) -> None:
        self.room = room
        self.free = 0
        self.served: list[str] = []
        self.tries: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, *, model: str = "m", priority: int = 0, arrived: float = 0.0) -> None:
        self.tasks[name] = asyncio.create_task(self._wait(name, model, priority, arrived))
        await settle()

    async def _wait(self, name: str, model: str, priority: int, arrived: float) -> None:
        with self.room.place(model, priority, arrived, None) as waiter:
            while True:
                await waiter.turn()
                self.tries.append(name)
                if self.free:
                    self.free -= 1
                    waiter.served = True
                    self.served.append(name)
                    return

    async def room_for(self, count: int) -> None:
        self.free += count
        self.room.news()
        await settle()

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_more_urgent_first_then_first_come() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    for name, priority in (("a", 0), ("b", 0), ("urgent", 5), ("c", 0), ("low", -1)):
        await crowd.come(name, priority=priority)
    await crowd.room_for(5)
    assert crowd.served == ["urgent", "a", "b", "c", "low"]
    assert room.length == 0


async def test_one_who_comes_back_keeps_the_place_of_its_arrival() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    await crowd.come("late", arrived=2.0)
    await crowd.come("early", arrived=1.0)
    await crowd.room_for(2)
    assert crowd.served == ["early", "late"]


async def test_only_the_first_tries() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    for name in "abc":
        await crowd.come(name)
    crowd.tries.clear()
    room.news()
    await settle()
    assert crowd.tries == ["a"]
    await crowd.close()


async def test_the_first_tries_again_after_a_pause_without_news() -> None:
    room, _ = make_room(pause=0.01)
    crowd = Crowd(room)
    await crowd.come("a")
    crowd.free = 1
    await asyncio.wait_for(crowd.tasks["a"], 5)
    assert crowd.served == ["a"]


async def test_one_who_has_tried_waits_for_news_or_the_pause() -> None:
    room, _ = make_room()
    tried: list[int] = []

    async def wait() -> None:
        with room.place("m", 0, 0.0, None, eager=False) as waiter:
            await waiter.turn()
            tried.append(room.news_heard)

    task = asyncio.create_task(wait())
    await settle()
    assert not tried
    room.news("other")
    await settle()
    assert not tried
    room.news("m")
    await task
    assert tried == [2]


async def test_a_newcomer_who_is_more_urgent_gets_the_news() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    await crowd.come("a")
    await crowd.come("urgent", priority=1)
    await crowd.room_for(1)
    assert crowd.served == ["urgent"]
    await crowd.room_for(1)
    assert crowd.served == ["urgent", "a"]


async def test_a_cancelled_first_hands_its_turn_on() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    await crowd.come("a")
    await crowd.come("b")
    crowd.free = 1
    crowd.tasks["a"].cancel()
    await settle()
    assert crowd.served == ["b"]
    assert room.length == 0


async def test_a_full_model_holds_up_no_other() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    await crowd.come("a", model="full")
    crowd.free = 1
    await crowd.come("b", model="other")
    assert crowd.served == ["b"]
    await crowd.close()


async def test_the_bound_is_on_all_lanes_together() -> None:
    room, _ = make_room(limit=2)
    crowd = Crowd(room)
    await crowd.come("a", model="x")
    await crowd.come("b", model="y")
    with pytest.raises(QueueFullError) as full, room.place("z", 0, 0.0, None):
        pass
    assert full.value.retry_after == UNKNOWN_WAIT
    await crowd.close()
    assert room.length == 0


async def test_must_wait_behind_equals_and_not_behind_the_less_urgent() -> None:
    room, _ = make_room()
    crowd = Crowd(room)
    await crowd.come("a", priority=1)
    assert room.must_wait("m", 0)
    assert room.must_wait("m", 1)
    assert not room.must_wait("m", 2)
    assert not room.must_wait("other", 0)
    await crowd.close()


async def test_a_wait_that_is_surely_too_long_is_refused_at_once() -> None:
    room, clock = make_room()
    crowd = Crowd(room)
    for i in range(SURE + 3):
        await crowd.come(str(i))
    for _ in range(SURE):
        clock.now += 2.0
        await crowd.room_for(1)
    with pytest.raises(QueueFullError) as hopeless, room.place("m", 0, 0.0, 5.0):
        pass
    assert hopeless.value.retry_after == pytest.approx(8.0)  # three ahead and itself, 2 s each
    with room.place("m", 0, 0.0, 10.0):
        pass
    await crowd.close()


def test_pace_is_that_of_the_busy_period() -> None:
    pace = Pace()
    assert pace.wait(3, 0.0) == UNKNOWN_WAIT
    pace.begin(0.0)
    pace.depart(2.0)
    pace.depart(4.0)
    assert pace.wait(3, 4.0) == pytest.approx(6.0)
    assert pace.wait(3, 8.0) == pytest.approx(12.0)  # nothing has moved since
    pace.begin(50.0)
    assert pace.wait(1, 50.0) == UNKNOWN_WAIT
    assert not pace.hopeless(1000, 50.0, 0.1)
