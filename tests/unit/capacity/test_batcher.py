"""Many callers, few calls: each gets its own answer, and nothing is left behind by those that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from pagemill_common.capacity import (
    Candidate,
    CapacitySettings,
    CapacityUnavailable,
    Granted,
    Refused,
    RefusedReason,
    Reserve,
    ReserveBatcher,
    ReserveReply,
    UnavailableReason,
)


class Pool:
    """Answers when told to; remembers what it was asked."""

    def __init__(self) -> None:
        self.settings = CapacitySettings(reserve_deadline=60)
        self.calls: list[list[Reserve]] = []
        self.limits: list[float | None] = []
        self.released: list[tuple[str, ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Callable[[Reserve], ReserveReply] = lambda r: Granted(r.id, r.candidates[0].replica, 1, 3.0)
        self.error: Exception | None = None

    async def reserve(self, requests: Sequence[Reserve], *, limit: float | None = None) -> list[ReserveReply]:
        self.calls.append(list(requests))
        self.limits.append(limit)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [self.answer(r) for r in requests]

    async def release(self, reservation_id: str, *replicas: str) -> bool:
        self.released.append((reservation_id, *replicas))
        return True


def request(name: str) -> Reserve:
    return Reserve(name, (Candidate("r:e", 1),))


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def batcher(pool: Pool) -> ReserveBatcher:
    return ReserveBatcher(pool)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_turn_is_one_call_and_each_gets_its_own_answer(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.answer = lambda r: Granted(r.id, "r:e", 1, 3.0) if int(r.id) % 2 else Refused(r.id, RefusedReason.FULL, 0.1)
    replies = await asyncio.gather(*(batcher.reserve(request(str(i))) for i in range(20)))
    assert [r.id for r in replies] == [str(i) for i in range(20)]
    assert [isinstance(r, Granted) for r in replies] == [bool(i % 2) for i in range(20)]
    assert [len(c) for c in pool.calls] == [20]


async def test_a_call_holds_at_most_thirty_two(pool: Pool, batcher: ReserveBatcher) -> None:
    await asyncio.gather(*(batcher.reserve(request(str(i))) for i in range(70)))
    assert [len(c) for c in pool.calls] == [32, 32, 6]


async def test_few_calls_are_out_at_once_and_the_rest_gathers(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.gate.clear()
    tasks = []
    for i in range(10):
        tasks.append(asyncio.create_task(batcher.reserve(request(str(i)))))
        await settle()
    assert [len(c) for c in pool.calls] == [1, 1]
    pool.gate.set()
    await asyncio.gather(*tasks)
    assert [len(c) for c in pool.calls] == [1, 1, 8]


async def test_an_id_appears_once_in_a_call(pool: Pool, batcher: ReserveBatcher) -> None:
    await asyncio.gather(batcher.reserve(request("a")), batcher.reserve(request("a")), batcher.reserve(request("b")))
    assert sorted(tuple(r.id for r in c) for c in pool.calls) == [("a",), ("a", "b")]


async def test_an_outage_reaches_every_caller_as_its_own_error(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.error = CapacityUnavailable(UnavailableReason.READONLY, "no writes")
    errors = await asyncio.gather(*(batcher.reserve(request(str(i))) for i in range(3)), return_exceptions=True)
    assert all(isinstance(e, CapacityUnavailable) and e.reason is UnavailableReason.READONLY for e in errors)
    assert len({id(e) for e in errors}) == 3
    assert batcher.idle


async def test_a_caller_that_leaves_before_the_call_is_not_asked_for(pool: Pool, batcher: ReserveBatcher) -> None:
    leaving = asyncio.create_task(batcher.reserve(request("leaving")))
    staying = asyncio.create_task(batcher.reserve(request("staying")))
    asyncio.get_running_loop().call_soon(leaving.cancel)
    await staying
    asked = [r.id for c in pool.calls for r in c]
    assert ("leaving" in asked) == (("leaving", "r:e") in pool.released)
    assert batcher.idle


async def test_a_caller_that_leaves_before_any_turn_is_never_sent(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.gate.clear()
    out = [asyncio.create_task(batcher.reserve(request(f"out{i}"))) for i in range(1)]
    await settle()
    more = [asyncio.create_task(batcher.reserve(request(f"more{i}"))) for i in range(1)]
    await settle()
    queued = asyncio.create_task(batcher.reserve(request("queued")))
    await settle()
    queued.cancel()
    await settle()
    pool.gate.set()
    await asyncio.gather(*out, *more)
    await batcher.aclose()
    assert [r.id for c in pool.calls for r in c] == ["out0", "more0"]
    assert pool.released == []


async def test_a_caller_that_leaves_during_the_call_has_its_grant_released(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.gate.clear()
    leaving = asyncio.create_task(batcher.reserve(request("leaving")))
    staying = asyncio.create_task(batcher.reserve(request("staying")))
    await settle()
    leaving.cancel()
    await settle()
    pool.gate.set()
    assert isinstance(await staying, Granted)
    await batcher.aclose()
    assert pool.released == [("leaving", "r:e")]
    assert batcher.idle


async def test_a_caller_that_leaves_as_its_answer_comes_has_its_grant_released(
    pool: Pool, batcher: ReserveBatcher
) -> None:
    leaving: asyncio.Task[ReserveReply]

    def answer(r: Reserve) -> ReserveReply:
        # Between the answer being set and the caller waking, in the same turn of the loop.
        asyncio.get_running_loop().call_soon(leaving.cancel)
        return Granted(r.id, "r:e", 1, 3.0)

    pool.answer = answer
    leaving = asyncio.create_task(batcher.reserve(request("leaving")))
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await batcher.aclose()
    assert pool.released == [("leaving", "r:e")]


async def test_a_refusal_to_one_that_left_releases_nothing(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.gate.clear()
    pool.answer = lambda r: Refused(r.id, RefusedReason.FULL, 0.1)
    leaving = asyncio.create_task(batcher.reserve(request("leaving")))
    await settle()
    leaving.cancel()
    await settle()
    pool.gate.set()
    await batcher.aclose()
    assert pool.released == []


async def test_waiting_for_a_call_counts_against_the_deadline() -> None:
    pool = Pool()
    now = [0.0]
    batcher = ReserveBatcher(pool, calls_at_once=1, monotonic=lambda: now[0])
    pool.gate.clear()
    first = asyncio.create_task(batcher.reserve(request("first")))
    await settle()
    late = asyncio.create_task(batcher.reserve(request("late")))
    await settle()
    now[0] = 40.0
    later = asyncio.create_task(batcher.reserve(request("later")))
    await settle()
    now[0] = 61.0
    pool.gate.set()
    assert isinstance(await first, Granted)
    with pytest.raises(CapacityUnavailable, match="in time"):
        await late
    assert isinstance(await later, Granted)
    assert pool.limits == [60.0, 39.0]


async def test_a_closed_batcher_answers_with_an_outage(pool: Pool, batcher: ReserveBatcher) -> None:
    await batcher.aclose()
    with pytest.raises(CapacityUnavailable):
        await batcher.reserve(request("a"))


async def test_a_bug_in_the_pool_leaves_nobody_waiting(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.error = KeyError("bug")
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with pytest.raises(KeyError):
        await batcher.reserve(request("a"))


async def test_a_call_that_is_cancelled_is_an_outage_and_cancels_no_caller(pool: Pool, batcher: ReserveBatcher) -> None:
    pool.gate.clear()
    asking = [asyncio.create_task(batcher.reserve(request(str(i)))) for i in range(3)]
    await settle()
    for call in batcher._calls:
        call.cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(answer, CapacityUnavailable) for answer in answers)
