"""Sources of addresses: what all must do, and what the fleet makes of them."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from integration.router.conftest import RunRouter, question

from pagemill.v1 import replica_pb2
from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_router.discovery.redis import RedisDiscovery
from pagemill_router.discovery.source import Discovery
from pagemill_router.discovery.static import StaticDiscovery
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.link import ReplicaLink
from support.fake_replica import Context, FakeReplica, text_of, until

Make = Callable[[RedisServer, list[str]], "AsyncIterator[Discovery]"]


@asynccontextmanager
async def static(server: RedisServer, replicas: list[str]) -> AsyncIterator[tuple[Discovery, frozenset[str]]]:
    addresses = frozenset(f"{name}:1" for name in replicas)
    yield StaticDiscovery(sorted(addresses)), addresses


@asynccontextmanager
async def by_redis(server: RedisServer, replicas: list[str]) -> AsyncIterator[tuple[Discovery, frozenset[str]]]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(CapacityPool(server.url, uuid.uuid4().hex))
        fakes = [await stack.enter_async_context(FakeReplica(name, pool=pool)) for name in replicas]

        async def all_listed() -> bool:
            return len(await pool.members()) == len(fakes)

        await until(all_listed)
        yield RedisDiscovery(pool, random.Random(1), 0.02), frozenset(fake.address for fake in fakes)


class Listener:
    """Follows a source."""

    def __init__(self, source: Discovery) -> None:
        self.heard: list[frozenset[str]] = []
        self._source = source

    async def __aenter__(self) -> Listener:
        self._task = asyncio.create_task(self._follow())
        await until(lambda: bool(self.heard))
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _follow(self) -> None:
        async for addresses in self._source.watch():
            self.heard.append(addresses)


SOURCES = pytest.mark.parametrize("make", [static, by_redis])


@SOURCES
@pytest.mark.parametrize("replicas", [["a", "b"], ["a"]])
async def test_the_whole_set_comes_first(make: Make, valkey: RedisServer, replicas: list[str]) -> None:
    async with make(valkey, replicas) as (source, addresses), Listener(source) as listener:  # type: ignore[attr-defined]
        assert listener.heard == [addresses]


@SOURCES
async def test_a_set_that_has_not_changed_is_not_repeated(make: Make, valkey: RedisServer) -> None:
    async with make(valkey, ["a"]) as (source, _), Listener(source) as listener:  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)
        assert len(listener.heard) == 1


@SOURCES
async def test_each_follower_hears_the_whole_set(make: Make, valkey: RedisServer) -> None:
    async with make(valkey, ["a"]) as (source, addresses):  # type: ignore[attr-defined]
        async with Listener(source) as listener:
            assert listener.heard[0] == addresses
        async with Listener(source) as listener:
            assert listener.heard[0] == addresses


async def test_redis_that_is_gone_takes_nobody_away(own_valkey: RedisServer) -> None:
    async with by_redis(own_valkey, ["a"]) as (source, addresses), Listener(source) as listener:
        own_valkey.kill()
        await asyncio.sleep(0.3)
        assert listener.heard == [addresses]


async def test_a_replica_that_comes_and_goes_is_heard_of(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica("r0", pool=pool) as one,
        run_router(one, redis_url=valkey.url, pool=pool.keys.pool, policy="round_robin") as caller,
    ):
        fleet = caller.router.fleet
        async with FakeReplica("r1", pool=pool) as two:
            await until(lambda: sum(view.ready for view in fleet.snapshot().replicas) == 2)
            for _ in range(2):
                await caller.ask(question())
            assert (len(one.seen), len(two.seen)) == (1, 1)
        # It has left: no traffic at once, and its address is forgotten when its record expires.
        await until(lambda: sum(view.ready for view in fleet.snapshot().replicas) == 1)
        assert (await caller.ask(question(max_tokens=2))).text == text_of(2)
        await until(lambda: [view.name for view in fleet.snapshot().replicas] == ["r0"], 30)


async def test_both_sources_add_up_and_one_replica_in_both_counts_once(
    run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with FakeReplica("r0", pool=pool) as one, FakeReplica("r1") as two:
        port = one.address.rpartition(":")[2]
        async with run_router(
            one,
            two,
            redis_url=valkey.url,
            pool=pool.keys.pool,
            replicas=(f"localhost:{port}", two.address),
            policy="round_robin",
        ) as caller:
            await until(lambda: sum(link.watching for link in caller.router.fleet.links()) == 3)
            views = caller.router.fleet.snapshot().replicas
            assert sorted(view.name for view in views) == ["r0", "r1"]


async def test_a_static_replica_that_starts_late_is_used_when_it_does(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as placeholder:
        address = placeholder.address
    async with FakeReplica("r1") as one, run_router(one, replicas=(one.address, address)) as caller:
        async with FakeReplica("r0", listen=address) as late:
            await until(lambda: sum(view.ready for view in caller.router.fleet.snapshot().replicas) == 2)
            await asyncio.gather(*(caller.ask(question(f"{i} different", max_tokens=2)) for i in range(40)))
            assert late.seen
        await until(lambda: sum(view.ready for view in caller.router.fleet.snapshot().replicas) == 1)


class FallsSilent(FakeReplica):
    """Once it is mute, a new state stream does not even begin."""

    async def WatchState(
        self, request: replica_pb2.WatchStateRequest, context: Context
    ) -> AsyncIterator[replica_pb2.WatchStateResponse]:
        if self.mute:
            await asyncio.Event().wait()
        async for message in super().WatchState(request, context):
            yield message


async def test_a_stream_outlives_its_state_stream_and_its_record(
    run_router: RunRouter, own_valkey: RedisServer
) -> None:
    async with (
        CapacityPool(own_valkey.url, "p") as pool,
        FallsSilent("r0", pool=pool, pace=0.05) as one,
        run_router(one, redis_url=own_valkey.url, pool="p", watch_timeout=1.5) as caller,
    ):
        streaming = asyncio.create_task(caller.ask(question(max_tokens=100)))
        await until(lambda: one.live == 1)
        one.mute = True
        await one.silence()
        own_valkey.restart()
        heard = await streaming
        assert heard.error is None
        assert heard.text == text_of(100)
        # Nothing streams any more, nobody lists it and it says nothing: now it is forgotten.
        await until(lambda: not list(caller.router.fleet.links()))
        await caller.idle()


async def test_a_message_that_cannot_be_taken_costs_the_stream_and_not_the_link(
    run_router: RunRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeReplica("r0") as one, run_router(one) as caller:
        (link,) = caller.router.fleet.links()
        with monkeypatch.context() as broken:
            broken.setattr(caller.router.book, "admit", None)
            one.tell()
            await until(lambda: not link.watching)
        await until(lambda: link.view().ready)
        assert (await caller.ask(question(max_tokens=2))).text == text_of(2)


async def test_a_fleet_that_is_left_while_it_asks_redis_leaves_no_task(valkey: RedisServer, pool: CapacityPool) -> None:
    class Nobody:
        async def admit(self, link: ReplicaLink, state: replica_pb2.ReplicaState) -> str:
            return "nobody may serve"

        def leave(self, link: ReplicaLink) -> None: ...

        def forget(self, link: ReplicaLink) -> None: ...

    before = asyncio.all_tasks()
    for turns in range(60):
        source = RedisDiscovery(pool, random.Random(1), 0.0)
        async with asyncio.timeout(5), Fleet([source], "r", Nobody(), clock=time.monotonic, rng=random.Random(1)):
            for _ in range(turns):
                await asyncio.sleep(0)
        assert not {task for task in asyncio.all_tasks() - before if "discovery" in task.get_name()}
