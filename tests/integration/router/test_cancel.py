"""A caller that goes away, at every stage: nothing of its call is left anywhere."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio
from integration.router.conftest import RunRouter, question

from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_router.admission.types import Mode
from support.fake_replica import FakeReplica, silent, text_of, until


async def pending_of(valkey: RedisServer, pool: CapacityPool, replica: FakeReplica) -> int:
    """Reservations that stand on the replica, expired ones included."""
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        return int(await client.hlen(pool.keys.pending(f"{replica.name}:{replica.epoch}")))  # type: ignore[misc]


async def released(valkey: RedisServer, pool: CapacityPool, reservation_id: str) -> bool:
    """It was given back: an id that has merely expired leaves nothing behind."""
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        return bool(await client.get(pool.keys.reservation(reservation_id)) == b"seen")


async def test_while_it_waits_for_room(run_router: RunRouter) -> None:
    async with FakeReplica(capacity=10, script=silent(after=1)) as replica, run_router(replica) as caller:
        first = caller.generation.Generate(question(max_tokens=150))
        await first.read()
        await first.read()
        waiting = [asyncio.create_task(caller.ask(question(max_tokens=100))) for _ in range(3)]
        await until(lambda: caller.router.room.length == 3)
        for task in waiting:
            task.cancel()
        await until(lambda: caller.router.room.length == 0)
        first.cancel()
        await caller.idle()
        assert len(replica.seen) == 1


async def test_while_the_replica_has_not_answered(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica(pool=pool, script=silent()) as replica,
        run_router(replica, redis_url=valkey.url, pool=pool.keys.pool) as caller,
    ):
        # Nobody but the router can give this reservation back.
        replica.blind = True
        call = caller.generation.Generate(question())
        reading = asyncio.ensure_future(call.read())
        await until(lambda: replica.live == 1)
        assert await pending_of(valkey, pool, replica) == 1
        call.cancel()
        await asyncio.wait({reading})
        await until(lambda: replica.seen[0].outcome == "cancelled")
        await caller.idle()
        assert await released(valkey, pool, replica.seen[0].request.placement.reservation_id)
        assert await gone(valkey, pool, replica)


async def gone(valkey: RedisServer, pool: CapacityPool, replica: FakeReplica) -> bool:
    return await pending_of(valkey, pool, replica) == 0


async def test_while_it_streams(run_router: RunRouter) -> None:
    async with FakeReplica(pace=0.01) as replica, run_router(replica) as caller:
        call = caller.generation.Generate(question(max_tokens=5000))
        for _ in range(5):
            await call.read()
        call.cancel()
        await until(lambda: replica.seen[0].outcome == "cancelled")
        await caller.idle()


async def test_while_redis_is_asked_for_room(run_router: RunRouter, own_valkey: RedisServer) -> None:
    """Redis grants after the caller has gone: the reservation is given back, not left to expire."""
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica(pool=pool) as replica,
        run_router(replica, redis_url=own_valkey.url, pool="p", reserve_timeout=5.0) as caller,
    ):
        assert (await caller.ask(question())).error is None
        own_valkey.pause()
        call = caller.generation.Generate(question())
        reading = asyncio.ensure_future(call.read())
        await until(lambda: not caller.router.admission.idle)
        call.cancel()
        await asyncio.wait({reading})
        own_valkey.resume()
        await caller.idle()
        # The replica's heartbeats end what it has seen; what it has not seen only a release can.
        await until(lambda: gone(own_valkey, pool, replica))
        assert len(replica.seen) == 1
        assert (await caller.ask(question())).error is None
        assert caller.router.admission.mode is Mode.REDIS


@pytest.mark.parametrize("mode", ["local", "redis"])
async def test_at_random_moments_under_load(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool, mode: str
) -> None:
    """Every stream ends whole or cancelled, and the books are empty afterwards."""
    own_pool = pool if mode == "redis" else None
    async with (
        FakeReplica("r0", capacity=40, pace=0.002, pool=own_pool) as one,
        FakeReplica("r1", capacity=40, pace=0.002, pool=own_pool) as two,
        run_router(one, two, redis_url=valkey.url if own_pool else None, pool=pool.keys.pool) as caller,
    ):

        async def one_call(number: int) -> str:
            asking = asyncio.create_task(caller.ask(question(max_tokens=20 + number % 60)))
            if number % 2:
                await asyncio.sleep(0.001 * (number * 7 % 150))
                if asking.cancel():
                    await asyncio.wait({asking})
                    return "cancelled" if asking.cancelled() else "whole"
            heard = await asking
            assert heard.error is None, heard.error
            assert heard.text == text_of(20 + number % 60)
            return "whole"

        ends = await asyncio.gather(*(one_call(number) for number in range(120)))
        assert ends.count("whole") >= 60
        await caller.idle()
        await until(lambda: one.live == two.live == 0)
        assert one.committed == two.committed == 0
        assert one.most_committed <= 40
        assert two.most_committed <= 40
        if own_pool is not None:
            await until(lambda: gone(valkey, own_pool, one))
            await until(lambda: gone(valkey, own_pool, two))
