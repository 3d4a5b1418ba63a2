"""The typed client against real servers, under each way in which they can be gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import pytest
import redis.asyncio
from integration.capacity.bench import ask

from pagemill_common.capacity import (
    Beat,
    BeatStatus,
    CapacityPool,
    CapacitySettings,
    CapacityUnavailable,
    Granted,
    Refused,
    RefusedReason,
    ReserveBatcher,
    Standing,
    UnavailableReason,
)
from pagemill_common.capacity.server import RedisServer

pytestmark = pytest.mark.redis

# The machine that runs the tests may be busy: the deadline is long where it does not matter.
SETTINGS = CapacitySettings(reserve_deadline=20, command_timeout=20)


def beat(name: str = "r1", seq: int = 1, **fields: Any) -> Beat:
    values = {"capacity": 100, "block_size": 16, "model": "m", "model_id": "id", "address": f"{name}:1", "epoch": "e"}
    return Beat(name=name, seq=seq, **(values | fields))


async def reserve(pool: CapacityPool, *args: Any, **more: Any) -> Granted | Refused:
    return (await pool.reserve([ask(*args, **more)]))[0]


@pytest.fixture
async def pool(server: RedisServer, pool_name: str) -> AsyncIterator[CapacityPool]:
    async with CapacityPool(server.url, pool_name, settings=SETTINGS) as made:
        yield made


@pytest.fixture
async def admin(own_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(own_server.url)
    yield client
    await client.aclose()


async def unavailable_reason(pool: CapacityPool) -> UnavailableReason:
    with pytest.raises(CapacityUnavailable) as caught:
        await reserve(pool, "a", "r1")
    return caught.value.reason


async def outcome(pool: CapacityPool) -> UnavailableReason | None:
    try:
        await pool.ping()
    except CapacityUnavailable as error:
        return error.reason
    return None


async def test_a_reservation_from_first_beat_to_tombstone(pool: CapacityPool) -> None:
    assert (await pool.heartbeat(beat())).status is BeatStatus.OK
    granted = await reserve(pool, "a", "r1")
    assert isinstance(granted, Granted)
    assert (granted.replica, granted.need) == ("r1:e", 10)
    assert 0 < granted.expires_in <= SETTINGS.ttl
    assert granted.figures[0].pending == 10
    reply = await pool.heartbeat(beat(seq=2, committed=10, seen=("a",)))
    assert (reply.acknowledged, reply.pending) == (True, 0)
    spent = await reserve(pool, "a", "r1")
    assert isinstance(spent, Refused)
    assert spent.reason is RefusedReason.SEEN


async def test_members_are_what_replicas_said(pool: CapacityPool) -> None:
    assert await pool.members() == []
    await pool.heartbeat(beat("r2", draining=True))
    await pool.heartbeat(beat("r1", committed=7, tokens_per_second=12.5))
    await reserve(pool, "a", "r1")
    first, second = await pool.members()
    assert (first.name, first.epoch, first.address, first.model) == ("r1", "e", "r1:1", "m")
    assert (first.model_id, first.block_size, first.fresh) == ("id", 16, True)
    assert (first.figures.committed, first.figures.pending, first.figures.tokens_per_second) == (7, 10, 12.5)
    assert second.figures.standing is Standing.DRAINING


async def test_of_two_epochs_at_one_address_the_younger_is_a_member(pool: CapacityPool) -> None:
    await pool.heartbeat(beat(epoch="old"))
    await asyncio.sleep(0.002)  # the pool counts milliseconds
    await pool.heartbeat(beat(epoch="new"))
    await pool.heartbeat(beat(epoch="old", seq=2))
    assert [m.epoch for m in await pool.members()] == ["new"]


async def test_a_silent_replica_leaves_by_itself(server: RedisServer, pool_name: str) -> None:
    short = CapacitySettings(ttl=1, stale_after=0.1, record_ttl=0.2, reserve_deadline=20, command_timeout=20)
    async with CapacityPool(server.url, pool_name, settings=short) as pool:
        await pool.heartbeat(beat())
        async with asyncio.timeout(30):
            while await pool.members():  # noqa: ASYNC110 - it ends by the server's clock
                await asyncio.sleep(0.02)
        assert isinstance(await reserve(pool, "a", "r1"), Refused)


async def test_flushed_scripts_cost_a_round_trip_and_no_error(pool: CapacityPool) -> None:
    await pool.heartbeat(beat())
    await pool._redis.script_flush()
    assert isinstance(await reserve(pool, "a", "r1"), Granted)
    await pool._redis.script_flush()
    assert (await pool.heartbeat(beat(seq=2))).acknowledged
    await pool._redis.script_flush()
    assert await pool.release("a", "r1:e")


async def test_few_connections_serve_many_callers(server: RedisServer, pool: CapacityPool) -> None:
    await pool.heartbeat(beat(capacity=1000))
    replies = await asyncio.gather(*(reserve(pool, f"a{i}", ("r1", 1)) for i in range(200)))
    assert all(isinstance(r, Granted) for r in replies)
    clients = await pool._redis.client_list()
    assert sum(c["name"] == f"pagemill-{pool.keys.pool}" for c in clients) <= SETTINGS.connections


async def test_a_caller_that_is_cancelled_at_any_moment_is_gone(pool: CapacityPool) -> None:
    async def follow() -> None:
        while True:
            await pool.members()
            await reserve(pool, "a", "r1")

    await pool.heartbeat(beat())
    for turns in range(150):
        follower = asyncio.create_task(follow())
        for _ in range(turns):
            await asyncio.sleep(0)
        follower.cancel()
        # One turn to hear of it and one to leave.
        done, _ = await asyncio.wait({follower}, timeout=1.0)
        assert done, f"cancelled after {turns} turns of the loop, and still there"
    assert [member.name for member in await pool.members()] == ["r1"], "its connections are whole"


@pytest.mark.parametrize("minutes", [10, -10])
async def test_a_moved_clock_costs_one_more_call_and_no_error(pool: CapacityPool, minutes: int) -> None:
    await pool.heartbeat(beat())

    def move() -> None:
        """As if the server had changed its clock by the opposite."""
        now = pool._clock.now_ms()
        assert now is not None
        pool._clock.update(now + minutes * 60_000)

    move()
    assert isinstance(await reserve(pool, "a", "r1"), Granted)
    move()
    assert (await pool.heartbeat(beat(seq=2))).acknowledged


async def test_a_server_that_comes_back_empty_knows_the_truth_after_two_beats(
    own_server: RedisServer, pool_name: str
) -> None:
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        for name in ("r1", "r2"):
            await pool.heartbeat(beat(name))
        await reserve(pool, "a", "r1")
        own_server.restart()
        unknown = await reserve(pool, "b", "r1", "r2")
        assert isinstance(unknown, Refused)
        assert unknown.reason is RefusedReason.STALE
        for seq in (2, 3):
            for name in ("r1", "r2"):
                assert (await pool.heartbeat(beat(name, seq=seq, committed=60, seen=("a",)))).acknowledged
        reply = await reserve(pool, "c", ("r1", 40), ("r2", 40))
        assert isinstance(reply, Granted)
        assert [(f.committed, f.pending) for f in reply.figures] == [(60, 40), (60, 0)]
        # What was seen before stays spent after it.
        assert isinstance(await reserve(pool, "a", "r1"), Refused)


async def test_a_killed_server_is_noticed_at_once(own_server: RedisServer, pool_name: str) -> None:
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        await pool.ping()
        own_server.kill()
        begun = time.monotonic()
        assert await unavailable_reason(pool) is UnavailableReason.CONNECTION
        assert time.monotonic() - begun < SETTINGS.reserve_deadline / 4


async def test_a_paused_server_costs_the_deadline_and_mixes_up_no_replies(
    own_server: RedisServer, pool_name: str
) -> None:
    short = CapacitySettings(reserve_deadline=0.1, command_timeout=20)
    async with CapacityPool(own_server.url, pool_name, settings=short) as pool:
        await pool.heartbeat(beat(capacity=1000))
        own_server.pause()
        for _ in range(2 * short.connections):
            assert await unavailable_reason(pool) is UnavailableReason.TIMEOUT
        own_server.resume()
        await pool.heartbeat(beat(capacity=1000, seq=2))
        for i in range(50):
            (reply,) = await pool.reserve([ask(f"b{i}", ("r1", i + 1))], limit=20)
            assert isinstance(reply, Granted | Refused)
            assert reply.id == f"b{i}"
            if isinstance(reply, Granted):
                assert reply.need == i + 1
                assert await pool.release(f"b{i}", "r1:e")


async def test_a_full_server(admin: redis.asyncio.Redis, own_server: RedisServer, pool_name: str) -> None:
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        await pool.heartbeat(beat())
        await admin.config_set("maxmemory", 1)
        assert await unavailable_reason(pool) is UnavailableReason.OOM
        await admin.config_set("maxmemory", 0)
        assert isinstance(await reserve(pool, "a", "r1"), Granted)


async def test_a_server_that_has_become_a_replica(
    admin: redis.asyncio.Redis, own_server: RedisServer, pool_name: str
) -> None:
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        await pool.heartbeat(beat())
        await admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert await unavailable_reason(pool) is UnavailableReason.READONLY
        await admin.config_set("replica-serve-stale-data", "no")
        assert await unavailable_reason(pool) is UnavailableReason.CLUSTERDOWN


async def test_a_server_busy_with_a_script(admin: redis.asyncio.Redis, own_server: RedisServer, pool_name: str) -> None:
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        await pool.heartbeat(beat())
        await admin.config_set("lua-time-limit", 1)
        endless = asyncio.create_task(admin.eval("while true do end", 0))
        try:
            async with asyncio.timeout(30):
                # It answers as usual until the script runs, and only then as busy.
                while (reason := await outcome(pool)) is None:
                    pass
            assert reason is UnavailableReason.BUSY
        finally:
            killer = redis.asyncio.Redis.from_url(own_server.url)
            await killer.script_kill()
            await killer.aclose()
            await asyncio.wait([endless])
            endless.exception()
        assert isinstance(await reserve(pool, "a", "r1"), Granted)


async def test_a_wrong_password(admin: redis.asyncio.Redis, own_server: RedisServer, pool_name: str) -> None:
    await admin.config_set("requirepass", "secret")
    async with CapacityPool(own_server.url, pool_name, settings=SETTINGS) as pool:
        assert await unavailable_reason(pool) is UnavailableReason.ACCESS


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_a_cluster_without_its_slots(kind: Any, pool_name: str) -> None:
    with RedisServer(kind, extra=("--cluster-enabled", "yes")) as server:
        async with CapacityPool(server.url, pool_name, settings=SETTINGS) as pool:
            assert await unavailable_reason(pool) is UnavailableReason.CLUSTERDOWN


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_the_keys_of_a_pool_live_on_one_node_of_a_cluster(kind: Any, pool_name: str) -> None:
    with RedisServer(kind, extra=("--cluster-enabled", "yes")) as server:
        admin = redis.asyncio.Redis.from_url(server.url)
        await admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        async with asyncio.timeout(30):
            while b"cluster_state:ok" not in await admin.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await admin.aclose()
        async with CapacityPool(server.url, pool_name, settings=SETTINGS) as pool:
            for name in ("r1", "r2"):
                assert (await pool.heartbeat(beat(name, seen=("x", "y")))).acknowledged
            replies = await pool.reserve([ask("a", "r1", "r2"), ask("b", "r2", "r1")])
            assert all(isinstance(r, Granted) for r in replies)
            assert await pool.release("a", "r1:e", "r2:e")
            assert len(await pool.members()) == 2


async def test_a_burst_from_eight_routers_spreads_and_never_passes_the_capacity(
    server: RedisServer, pool_name: str
) -> None:
    replicas = [f"r{i}" for i in range(8)]
    capacity, need, calls = 1000, 10, 100
    pools = [CapacityPool(server.url, pool_name, settings=SETTINGS) for _ in range(8)]
    try:
        for name in replicas:
            await pools[0].heartbeat(beat(name, capacity=capacity))
        batchers = [ReserveBatcher(pool) for pool in pools]

        async def burst(router: int, count: int, first: int) -> list[Granted | Refused]:
            requests = (ask(f"{router}-{first + i}", *((r, need) for r in replicas)) for i in range(count))
            return await asyncio.gather(*(batchers[router].reserve(r) for r in requests))

        async def refresh(seq: int) -> None:
            for name in replicas:
                await pools[0].heartbeat(beat(name, capacity=capacity, seq=seq))

        taken = dict.fromkeys((f"{r}:e" for r in replicas), 0)
        for reply in chain(*await asyncio.gather(*(burst(i, calls // 2, 0) for i in range(8)))):
            assert isinstance(reply, Granted), reply
            taken[reply.replica] += reply.need
        assert max(taken.values()) <= 1.3 * sum(taken.values()) / len(taken)
        assert min(taken.values()) > 0

        await refresh(2)
        replies = list(chain(*await asyncio.gather(*(burst(i, calls, calls) for i in range(8)))))
        figures = {f.replica: f for f in (await pools[0].reserve([ask("last", *replicas)]))[0].figures}
        assert any(isinstance(r, Refused) for r in replies)
        for known in figures.values():
            assert known.pending <= capacity
        for reply in replies:
            for known in reply.figures:
                assert known.committed + known.pending <= capacity
    finally:
        for pool in pools:
            await pool.aclose()
