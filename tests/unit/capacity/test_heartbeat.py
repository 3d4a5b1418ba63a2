"""The loop by which a replica says what it has."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from pagemill_common.capacity import (
    Beat,
    BeatReply,
    BeatStatus,
    CapacityUnavailable,
    HeartbeatLoop,
    UnavailableReason,
)
from pagemill_replica.front.ledger import Ledger

OK = BeatReply(BeatStatus.OK, True)


class Pool:
    """Takes beats one by one; the test decides what becomes of each."""

    def __init__(self) -> None:
        self.beats: list[Beat] = []
        self.fate: BeatReply | CapacityUnavailable = OK
        self.out = 0
        self.most_out = 0
        self.arrived = asyncio.Condition()
        self.gate = asyncio.Event()
        self.gate.set()

    async def heartbeat(self, beat: Beat) -> BeatReply:
        self.out += 1
        self.most_out = max(self.most_out, self.out)
        try:
            async with self.arrived:
                self.beats.append(beat)
                self.arrived.notify_all()
            await self.gate.wait()
        finally:
            self.out -= 1
        if isinstance(self.fate, CapacityUnavailable):
            raise self.fate
        return self.fate

    async def count(self, beats: int) -> None:
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: len(self.beats) >= beats)


@pytest.fixture
def pool() -> Pool:
    return Pool()


def source_of(ledger: Ledger) -> Beat:
    return Beat("r", "e", "h:1", "m", "id", 16, capacity=100, committed=ledger.committed, seen=ledger.seen())


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(100, clock=lambda: 0.0)


def loop_over(pool: Pool, ledger: Ledger, interval: float = 0.01, **more: object) -> HeartbeatLoop:
    def on_reply(beat: Beat, reply: BeatReply) -> None:
        if reply.acknowledged:
            ledger.acknowledge(beat.seen)

    return HeartbeatLoop(
        pool,
        lambda: source_of(ledger),
        interval=interval,
        min_gap=0.001,
        rng=Random(1),
        on_reply=on_reply,
        **more,  # type: ignore[arg-type]
    )


async def test_beats_are_numbered_and_one_is_out_at_a_time(pool: Pool, ledger: Ledger) -> None:
    async with loop_over(pool, ledger) as loop:
        for _ in range(50):
            loop.nudge()
            await asyncio.sleep(0)
        await pool.count(5)
    assert [b.seq for b in pool.beats] == list(range(1, len(pool.beats) + 1))
    assert pool.most_out == 1


async def test_a_nudge_brings_a_beat_long_before_its_time(pool: Pool, ledger: Ledger) -> None:
    async with loop_over(pool, ledger, interval=3600) as loop:
        await pool.count(1)
        ledger.accept("a", 1, 1, 30, "x")
        loop.nudge()
        await pool.count(2)
        assert pool.beats[1].committed == 30
        assert pool.beats[1].seen == ("x",)


async def test_a_nudge_during_a_beat_is_not_lost(pool: Pool, ledger: Ledger) -> None:
    pool.gate.clear()
    async with loop_over(pool, ledger, interval=3600) as loop:
        await pool.count(1)
        ledger.accept("a", 1, 1, 30)
        loop.nudge()
        pool.gate.set()
        await pool.count(2)
        assert pool.beats[1].committed == 30


async def test_seen_ids_are_repeated_until_acknowledged(pool: Pool, ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 30, "x")
    pool.fate = CapacityUnavailable(UnavailableReason.TIMEOUT, "slow")
    async with loop_over(pool, ledger):
        await pool.count(3)
        assert all(b.seen == ("x",) for b in pool.beats)
        pool.fate = BeatReply(BeatStatus.OLD, False)
        count = len(pool.beats)
        await pool.count(count + 3)
        assert pool.beats[-1].seen == ("x",)
        pool.fate = OK
        count = len(pool.beats)
        await pool.count(count + 3)
        assert pool.beats[-1].seen == ()


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Message and reason of every line."""
    return [(record.message, vars(record)["pagemill_fields"].get("reason", "")) for record in caplog.records]


async def test_an_outage_is_logged_once_and_its_end_once(
    pool: Pool, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagemill")
    gone = CapacityUnavailable(UnavailableReason.CONNECTION, "refused")
    pool.fate = gone
    async with loop_over(pool, ledger) as loop:
        await pool.count(5)
        assert loop.silence is None
        for fate in (OK, gone, OK):
            pool.fate = fate
            await pool.count(len(pool.beats) + 3)
        assert loop.silence is not None
    assert told(caplog) == [
        ("heartbeats do not reach redis", "connection: refused"),
        ("joined the pool", ""),
        ("heartbeats do not reach redis", "connection: refused"),
        ("heartbeats reach the pool again", ""),
    ]


async def test_a_refusal_is_logged_with_its_reason(
    pool: Pool, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    pool.fate = BeatReply(BeatStatus.REFUSED, False, message="the pool has block_size 32, this replica has 16")
    async with loop_over(pool, ledger) as loop:
        await pool.count(4)
        assert loop.last_reply == pool.fate
    assert told(caplog) == [("the pool refuses this replica", pool.fate.message)]


async def test_the_last_beat_says_draining(pool: Pool, ledger: Ledger) -> None:
    async with loop_over(pool, ledger, interval=3600):
        await pool.count(1)
    assert [b.draining for b in pool.beats] == [False, True]
    assert pool.beats[-1].seq == 2


async def test_leaving_without_redis_works(pool: Pool, ledger: Ledger) -> None:
    pool.fate = CapacityUnavailable(UnavailableReason.CONNECTION, "refused")
    async with loop_over(pool, ledger, interval=3600):
        await pool.count(1)
    assert pool.beats[-1].draining


async def test_intervals_are_spread(pool: Pool, ledger: Ledger) -> None:
    for wrong in ({"interval": 0.0}, {"jitter": 1.0}, {"interval": 0.001, "min_gap": 0.01}):
        with pytest.raises(ValueError, match="must hold"):
            HeartbeatLoop(pool, lambda: source_of(ledger), **wrong)


async def test_one_beat_that_fails_is_not_the_last(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    failing = iter([True, False, True])

    def source() -> Beat:
        if next(failing, False):
            raise ZeroDivisionError
        return Beat("r", "e", "h:1", "m", "id", 16, capacity=100)

    async with HeartbeatLoop(pool, source, interval=0.01, min_gap=0.001):
        await pool.count(3)
    assert caplog.text.count("a heartbeat failed") == 2
