"""When admission goes by Redis and when by itself, and what the log says of it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from pagemill_common import capacity
from pagemill_common.capacity.server import RedisServer
from pagemill_router.admission.admission import SETTLE_SECONDS, Admission, RedisBooks
from pagemill_router.admission.types import Ask, Grant, Mode
from pagemill_router.fleet.sends import Sends
from pagemill_router.fleet.view import ReplicaView, Standing
from pagemill_router.policies.base import Candidate

KEY = "a:e"


class Clock:
    """Time as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Admission over a real pool, the clock and the log of it."""

    def __init__(self, url: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "pagemill")
        self.clock = Clock()
        self.pool = capacity.CapacityPool(url, uuid.uuid4().hex)
        breaker = capacity.Breaker(self.clock, lambda: 0.0)
        books = RedisBooks(self.pool, capacity.ReserveBatcher(self.pool), breaker)
        self.admission = Admission(books, Sends(), clock=self.clock)
        self._caplog = caplog
        self._seq = 0

    async def beat(self) -> None:
        self._seq += 1
        beat = capacity.Beat("a", "e", "h:1", "m", "id", 16, capacity=100, seq=self._seq)
        assert (await self.pool.heartbeat(beat)).acknowledged

    async def ask(self) -> Mode:
        view = ReplicaView("h:1", "a", "e", model="m", standing=Standing.READY, capacity=100, watching_routers=1)
        answer = await self.admission.admit(Ask([Candidate(view, 0.0, 0, 1, "")], 0.0))
        assert isinstance(answer, Grant)
        return answer.mode

    def told(self) -> list[tuple[str, str, str]]:
        """Level, mode and reason of every line about the mode."""
        lines = [record for record in self._caplog.records if record.message == "admission mode"]
        fields = [vars(record)["pagemill_fields"] for record in lines]
        return [
            (line.levelname, f["mode"], f["reason"].partition(":")[0]) for line, f in zip(lines, fields, strict=True)
        ]


@pytest.fixture
async def bench(own_valkey: RedisServer, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    made = Bench(own_valkey.url, caplog)
    yield made
    await made.admission.close()
    await made.pool.aclose()


def nobody() -> set[str]:
    return set()


def one() -> set[str]:
    return {KEY}


@pytest.mark.parametrize("watched", [one, nobody])
async def test_the_first_replica_joins_and_the_last_leaves_without_a_word(
    bench: Bench, watched: Callable[[], set[str]]
) -> None:
    for present in (nobody, watched, watched, nobody):
        await bench.admission.look(present)
        bench.clock.now += 0.5
    assert (bench.admission.mode, bench.told()) == (Mode.REDIS, [])


async def test_a_replica_that_leaves_while_redis_is_asked_is_no_witness(bench: Bench) -> None:
    await bench.admission.look(one)
    bench.clock.now += 2 * SETTLE_SECONDS
    answers = iter([{KEY}, set()])
    await bench.admission.look(lambda: next(answers))
    assert (bench.admission.mode, bench.told()) == (Mode.REDIS, [])


async def test_a_replica_that_has_just_come_is_served_by_its_own_figures_and_the_mode_stays(bench: Bench) -> None:
    assert await bench.ask() is Mode.LOCAL
    assert (bench.admission.mode, bench.told()) == (Mode.REDIS, [])
    await bench.beat()
    assert await bench.ask() is Mode.REDIS


async def test_a_replica_that_never_reports_turns_the_mode_with_a_reason_and_its_report_turns_it_back(
    bench: Bench,
) -> None:
    await bench.ask()
    bench.clock.now += SETTLE_SECONDS
    assert await bench.ask() is Mode.LOCAL
    assert bench.told() == [("WARNING", "local", "stale")]
    await bench.beat()
    bench.clock.now += 1.0
    await bench.admission.look(one)
    assert bench.admission.mode is Mode.REDIS
    assert bench.told()[1:] == [("INFO", "redis", "redis answers")]


async def test_a_redis_that_is_gone_is_the_reason(bench: Bench, own_valkey: RedisServer) -> None:
    own_valkey.kill()
    await bench.admission.look(nobody)
    assert bench.told() == [("WARNING", "local", "connection")]
    own_valkey.start()
    bench.clock.now += 5.0
    await bench.admission.look(nobody)
    assert bench.told()[1:] == [("INFO", "redis", "redis answers")]
