"""Redis as the book of rooms, and what happens when it is gone."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from integration.router.conftest import Caller, RunRouter, question

from pagemill.v1 import admin_pb2
from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_router.admission.types import Mode
from support.fake_replica import FakeReplica, text_of, until


async def ask_well(caller: Caller, tokens: int = 4) -> None:
    heard = await caller.ask(question(max_tokens=tokens))
    assert heard.error is None, heard.error
    assert heard.text == text_of(tokens)


@pytest.mark.parametrize("policy", ["round_robin", "power_of_two", "least_loaded", "prefix_affinity"])
@pytest.mark.parametrize("mode", ["redis", "local"])
async def test_a_burst_spreads(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool, policy: str, mode: str
) -> None:
    own = pool if mode == "redis" else None
    async with (
        FakeReplica("r0", pool=own, pace=0.05) as one,
        FakeReplica("r1", pool=own, pace=0.05) as two,
        FakeReplica("r2", pool=own, pace=0.05) as three,
        FakeReplica("r3", pool=own, pace=0.05) as four,
        run_router(
            one, two, three, four, redis_url=valkey.url if own else None, pool=pool.keys.pool, policy=policy
        ) as caller,
    ):
        fleet = (one, two, three, four)
        # Different prompts, all at once: nothing has been heard of any when the last is placed.
        prompts = [chr(65 + i % 26) * 20 + str(i) for i in range(80)]
        heard = await asyncio.gather(*(caller.ask(question(prompt, max_tokens=4)) for prompt in prompts))
        assert [one.error for one in heard] == [None] * 80
        shares = Counter({replica.name: len(replica.seen) for replica in fleet})
        assert all(shares[replica.name] for replica in fleet), shares
        assert max(shares.values()) <= 2 * 80 / 4, shares
        expected = Mode.REDIS if own else Mode.LOCAL
        assert caller.router.admission.mode is expected
        await caller.idle()


async def test_two_routers_never_overfill_a_replica(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica("r0", capacity=20, pool=pool, pace=0.005) as one,
        FakeReplica("r1", capacity=20, pool=pool, pace=0.005) as two,
        run_router(one, two, redis_url=valkey.url, pool=pool.keys.pool) as first,
        run_router(one, two, redis_url=valkey.url, pool=pool.keys.pool) as second,
    ):
        await asyncio.gather(*(ask_well((first, second)[i % 2], 5 + i % 30) for i in range(120)))
        assert max(one.most_committed, two.most_committed) <= 20
        await first.idle()
        await second.idle()


async def test_redis_killed_and_restarted_empty_under_load_harms_nobody(
    run_router: RunRouter, own_valkey: RedisServer
) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", pool=pool, pace=0.002) as one,
        FakeReplica("r1", pool=pool, pace=0.002) as two,
        run_router(one, two, redis_url=own_valkey.url, pool="p") as caller,
    ):
        stop = asyncio.Event()
        modes: list[str] = []

        async def load() -> int:
            count = 0
            while not stop.is_set():
                await ask_well(caller)
                modes.append(one.seen[-1].request.placement.reservation_id and caller.router.admission.mode.value)
                count += 1
            return count

        workers = [asyncio.create_task(load()) for _ in range(6)]
        await until(lambda: len(modes) > 30)
        assert caller.router.admission.mode is Mode.REDIS
        own_valkey.kill()
        await until(lambda: caller.router.admission.mode is Mode.LOCAL)
        mark = len(modes)
        await until(lambda: len(modes) > mark + 30)
        own_valkey.start()
        await until(lambda: caller.router.admission.mode is Mode.REDIS)
        mark = len(modes)
        await until(lambda: len(modes) > mark + 30)
        stop.set()
        await asyncio.gather(*workers)
        assert all(view.ready for view in caller.router.fleet.snapshot().replicas)
        assert caller.router.server.health.serving
        await caller.idle()


async def test_redis_killed_while_reserves_are_out_harms_nobody(run_router: RunRouter, own_valkey: RedisServer) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=own_valkey.url, pool="p") as caller,
    ):
        own_valkey.pause()
        asking = [asyncio.create_task(ask_well(caller)) for _ in range(80)]
        await until(lambda: not caller.router.admission.idle)
        own_valkey.kill()
        await asyncio.gather(*asking)
        await caller.idle()


async def test_redis_restarted_empty_while_a_request_holds_room_serves_it(
    run_router: RunRouter, own_valkey: RedisServer
) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", capacity=2, pool=pool, pace=0.15) as one,
        run_router(one, redis_url=own_valkey.url, pool="p", expected_output="full") as caller,
    ):
        first = asyncio.create_task(ask_well(caller, 27))
        await until(lambda: one.live == 1)
        second = asyncio.create_task(ask_well(caller, 26))

        async def held() -> bool:
            return any(member.figures.held for member in await pool.members())

        await until(held)
        own_valkey.restart()
        await asyncio.gather(first, second)
        await caller.idle()


async def test_a_redis_that_talks_nonsense_is_gone(run_router: RunRouter) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(4096):
            # One answer a command.
            writer.write(b"+OK\r\n" * chunk.count(b"*"))
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        CapacityPool(f"redis://127.0.0.1:{port}/0", "p") as pool,
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=f"redis://127.0.0.1:{port}/0", pool="p", replicas=(one.address,)) as caller,
    ):
        await asyncio.gather(*(ask_well(caller) for _ in range(20)))
        assert caller.router.admission.mode is Mode.LOCAL
        await caller.idle()


async def test_the_mode_of_an_idle_router_follows_redis(run_router: RunRouter, own_valkey: RedisServer) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=own_valkey.url, pool="p") as caller,
    ):
        for _ in range(2):
            assert await listed_mode(caller) == admin_pb2.ADMISSION_MODE_REDIS
            own_valkey.kill()
            await until(lambda: listed(caller, admin_pb2.ADMISSION_MODE_LOCAL))
            own_valkey.start()
            await until(lambda: listed(caller, admin_pb2.ADMISSION_MODE_REDIS))
        assert not one.seen, "no request told it"


async def test_the_mode_of_an_idle_router_follows_stale_heartbeats(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=valkey.url, pool=pool.keys.pool) as caller,
    ):
        await one.silence()
        await until(lambda: listed(caller, admin_pb2.ADMISSION_MODE_LOCAL))
        assert not one.seen


async def listed_mode(caller: Caller) -> int:
    return (await caller.admin.ListReplicas(admin_pb2.ListReplicasRequest())).admission_mode


async def listed(caller: Caller, mode: int) -> bool:
    return await listed_mode(caller) == mode


async def test_a_paused_redis_costs_no_more_than_the_reserve_timeout(
    run_router: RunRouter, own_valkey: RedisServer
) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=own_valkey.url, pool="p") as caller,
    ):
        own_valkey.pause()
        async with asyncio.timeout(10):
            await asyncio.gather(*(ask_well(caller) for _ in range(20)))
        assert caller.router.admission.mode is Mode.LOCAL
        own_valkey.resume()
        async with asyncio.timeout(20):
            while caller.router.admission.mode is Mode.LOCAL:
                await ask_well(caller)


async def test_stale_heartbeats_are_redis_gone_and_not_all_full(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=valkey.url, pool=pool.keys.pool) as caller,
    ):
        await ask_well(caller)
        await one.silence()
        async with asyncio.timeout(30):
            while caller.router.admission.mode is Mode.REDIS:
                await ask_well(caller)
        # Also when its record has expired: the address is known, and the replica says that it lives.
        await until(lambda: no_members(pool))
        await ask_well(caller)


async def no_members(pool: CapacityPool) -> bool:
    return not await pool.members()


async def test_without_redis_at_the_start_static_replicas_serve(run_router: RunRouter, own_valkey: RedisServer) -> None:
    own_valkey.kill()
    async with FakeReplica("r0") as one, run_router(one, redis_url=None) as reference:
        await ask_well(reference)
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=own_valkey.url, pool="p", replicas=(one.address,)) as caller,
    ):
        await ask_well(caller)
        assert caller.router.admission.mode is Mode.LOCAL
        own_valkey.start()
        async with asyncio.timeout(20):
            while caller.router.admission.mode is Mode.LOCAL:
                await ask_well(caller)


async def test_local_mode_alone_is_never_refused_by_a_ledger(run_router: RunRouter) -> None:
    async with FakeReplica(capacity=100, pace=0.002) as replica, run_router(replica) as caller:
        await asyncio.gather(*(ask_well(caller, 100 + i % 7) for i in range(60)))
        refused = [seen for seen in replica.seen if seen.outcome == "failed"]
        assert not refused
        await caller.idle()
