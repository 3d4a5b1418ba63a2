"""The server of a local stack and of tests, and the whole of one replica's and one router's life over it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from integration.capacity.bench import ask

from pagemill_common.capacity import (
    Beat,
    BeatReply,
    Breaker,
    BreakerState,
    CapacityPool,
    CapacitySettings,
    CapacityUnavailable,
    Granted,
    HeartbeatLoop,
    Refused,
    RefusedReason,
    ReserveBatcher,
)
from pagemill_common.capacity.server import RedisServer, ServerStartError, answers, free_port
from pagemill_replica.front.ledger import Accepted, Ledger

pytestmark = pytest.mark.redis

EMBEDDED = [sys.executable, "-m", "pagemill_common.capacity.embedded"]


def wait_until_gone(pid: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} lives on")


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    process = subprocess.Popen([*EMBEDDED, "--dir", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    yield process, ready
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until_gone(ready["pid"])


def test_the_embedded_server_says_where_it_is_and_keeps_and_evicts_nothing(
    embedded: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    _, ready = embedded
    with redis.Redis.from_url(ready["url"]) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert client.config_get("save")["save"] == ""
        assert client.config_get("appendonly")["appendonly"] == "no"
        assert client.config_get("bind")["bind"] == "127.0.0.1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_on_a_signal(
    embedded: tuple[subprocess.Popen[str], dict[str, Any]], number: signal.Signals
) -> None:
    process, ready = embedded
    process.send_signal(number)
    assert process.wait(30) == 0
    wait_until_gone(ready["pid"])
    assert not answers(ready["port"])


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux to tell of a parent's death")
def test_it_leaves_no_server_behind_when_it_is_killed(
    embedded: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    process, ready = embedded
    process.kill()
    wait_until_gone(ready["pid"])


def test_it_ends_when_its_parent_has_gone(tmp_path: Path) -> None:
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    command = [sys.executable, "-c", code, *EMBEDDED, "--dir", str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ready = json.loads(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(ready["pid"])


def test_a_taken_port_is_said(server: RedisServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [*EMBEDDED, "--port", str(server.port), "--dir", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert f"port {server.port} is taken" in done.stderr
    with pytest.raises(ServerStartError, match="is taken"):
        RedisServer("valkey", server.port).start()


def test_a_server_that_cannot_start_says_why() -> None:
    server = RedisServer("redis", free_port(), extra=("--no-such-option", "1"))
    with pytest.raises(ServerStartError, match="did not answer"):
        server.start()
    server.stop()


def test_a_server_can_be_paused_killed_and_restarted_empty_on_its_port(own_server: RedisServer) -> None:
    client = redis.Redis.from_url(own_server.url, socket_timeout=20)
    port, pid = own_server.port, own_server.pid
    client.set("a", 1)
    own_server.pause()
    assert not answers(port, 0.05)
    own_server.resume()
    assert client.get("a") == b"1"
    own_server.restart()
    assert own_server.port == port
    assert own_server.pid != pid
    with redis.Redis.from_url(own_server.url) as fresh:
        assert fresh.get("a") is None
    client.close()
    own_server.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not answers(port)


# One replica, one router, one server that comes and goes.

SETTINGS = CapacitySettings(reserve_deadline=5, command_timeout=5)


class Replica:
    """A ledger and its heartbeats."""

    def __init__(self, pool: CapacityPool, name: str) -> None:
        self.name = name
        self.ledger = Ledger(100, clock=time.monotonic)
        self.beats = HeartbeatLoop(pool, self.beat, interval=0.02, on_reply=self.on_reply)
        self.draining = False

    def beat(self) -> Beat:
        committed, seen = self.ledger.committed, self.ledger.seen()
        return Beat(self.name, "e", f"{self.name}:1", "m", "id", 16, capacity=100, committed=committed, seen=seen)

    def on_reply(self, beat: Beat, reply: BeatReply) -> None:
        if reply.acknowledged:
            self.ledger.acknowledge(beat.seen)


async def wait_for(condition: Any, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.01)


async def test_redis_goes_and_comes_back_while_requests_run(own_server: RedisServer, pool_name: str) -> None:
    async with (
        CapacityPool(own_server.url, pool_name, settings=SETTINGS) as replica_pool,
        CapacityPool(own_server.url, pool_name, settings=SETTINGS) as router_pool,
    ):
        replica = Replica(replica_pool, "r1")
        batcher = ReserveBatcher(router_pool)
        breaker = Breaker(time.monotonic, lambda: 0.0, failures=2, pause=0.02, max_pause=0.05)

        async def place(name: str) -> bool:
            """What a router does: reserve if the breaker lets it, send either way; the ledger has the last word."""
            reservation = ""
            if breaker.allow():
                try:
                    reply = await batcher.reserve(ask(name, ("r1", 10)))
                    breaker.succeeded()
                    if isinstance(reply, Refused) and reply.reason is not RefusedReason.STALE:
                        return False
                    reservation = name if isinstance(reply, Granted) else ""
                except CapacityUnavailable as error:
                    breaker.failed(error.reason)
            return isinstance(replica.ledger.accept(name, 1, int(name), 10, reservation), Accepted)

        async with replica.beats:
            assert await truth_in_redis(router_pool, replica)
            assert [await place(str(i)) for i in range(5)] == [True] * 5
            assert await truth_in_redis(router_pool, replica)

            own_server.kill()
            assert [await place(str(i)) for i in range(5, 9)] == [True] * 4
            assert breaker.state is not BreakerState.CLOSED
            for key in range(3):
                replica.ledger.end(key)

            own_server.start()
            assert await truth_in_redis(router_pool, replica)
            assert replica.ledger.committed == 60

            async def closed() -> bool:
                if breaker.state is not BreakerState.CLOSED and breaker.allow():
                    await router_pool.ping()
                    breaker.succeeded()
                return breaker.state is BreakerState.CLOSED

            await wait_for(closed)
            assert [await place(str(i)) for i in range(20, 25)] == [True] * 4 + [False]
            assert await truth_in_redis(router_pool, replica)
        (member,) = await router_pool.members()
        assert member.figures.standing == "draining"


async def truth_in_redis(pool: CapacityPool, replica: Replica) -> bool:
    """Waits until Redis says what the ledger says, with nothing pending and nothing left to acknowledge."""

    async def told() -> bool:
        members = await pool.members()
        return bool(
            members
            and members[0].fresh
            and members[0].figures.committed == replica.ledger.committed
            and members[0].figures.pending == 0
            and not replica.ledger.seen()
        )

    await wait_for(told)
    return True


async def test_a_router_that_dies_between_reserve_and_send_leaves_nothing(server: RedisServer, pool_name: str) -> None:
    short = CapacitySettings(ttl=1, stale_after=0.5, hold_ttl=0.5, reserve_deadline=5, command_timeout=5)
    async with CapacityPool(server.url, pool_name, settings=short) as pool:
        replica = Replica(pool, "r1")
        async with replica.beats:
            assert await truth_in_redis(pool, replica)
            async with CapacityPool(server.url, pool_name, settings=short) as router:
                (reply,) = await router.reserve([ask("a", ("r1", 60))])
                assert isinstance(reply, Granted)
            assert replica.beats.last_reply is not None
            assert await truth_in_redis(pool, replica)
            (reply,) = await pool.reserve([ask("b", ("r1", 100))])
            assert isinstance(reply, Granted)


async def test_callers_that_leave_at_any_moment_leave_no_reservation(server: RedisServer, pool_name: str) -> None:
    async with CapacityPool(server.url, pool_name, settings=SETTINGS) as pool:
        await pool.heartbeat(Beat("r1", "e", "r1:1", "m", "id", 16, capacity=10_000, seq=1))
        batcher = ReserveBatcher(pool)
        kept = 0
        for turns in range(60):
            task = asyncio.create_task(batcher.reserve(ask(f"a{turns}", ("r1", 10))))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                kept += 10
            except asyncio.CancelledError:
                pass
        await batcher.aclose()
        assert batcher.idle
        (member,) = await pool.members()
        assert member.figures.pending == kept
