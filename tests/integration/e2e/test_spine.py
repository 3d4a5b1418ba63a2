"""Two routers, two replicas with the real model, a real Redis: streams, cancels, a drain, a kill, Redis gone and back.

The replicas compute deterministically, so every answer is known from asking the same question alone.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator

import grpc
import pytest
import redis.asyncio as redis_client

from pagemill.v1 import (
    AdminServiceStub,
    AdmissionMode,
    GenerateRequest,
    ListReplicasRequest,
    ListReplicasResponse,
    ReplicaStanding,
)
from pagemill_common.capacity.server import RedisServer
from support.callers import Outcome, ask, question
from support.fleet import Fleet, Tier, fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.redis, pytest.mark.timeout(300)]

SUBJECTS = ("the sea", "a clock", "bread", "Iceland", "a proof", "jazz", "rust", "moss", "an abacus", "rain")
PROMPTS = tuple(f"Question {i}: what would you tell a child about {SUBJECTS[i % 10]}?\nAnswer:" for i in range(20))
LONG = " ".join(f"{n} sheep jumped over the wall." for n in range(100))


class Stack:
    """A fleet of two and two, and channels to its routers."""

    def __init__(self, made: Fleet, redis_server: RedisServer) -> None:
        self.fleet = made
        self.redis = redis_server
        # A long prompt takes several steps of this budget: it can be caught halfway.
        flags = ("--deterministic", "--max-context", "4096", "--token-budget", "256")
        self.replicas = [made.replica(f"replica-{i}", *flags) for i in range(2)]
        self.routers = [made.router(f"router-{i}") for i in range(2)]
        self.channels: list[grpc.aio.Channel] = []

    async def open(self) -> Stack:
        await self.fleet.ready()
        self.channels = [grpc.aio.insecure_channel(tier.address) for tier in self.routers]
        for i in range(2):
            await until(lambda i=i: self.standing(i, "READY", 2), 30, "both routers know both replicas")
        return self

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()

    def channel(self, n: int) -> grpc.aio.Channel:
        return self.channels[n % len(self.channels)]

    async def list(self, router: int = 0) -> ListReplicasResponse:
        return await AdminServiceStub(self.channels[router]).ListReplicas(ListReplicasRequest())

    async def standing(self, router: int, name: str, count: int) -> bool:
        listed = (await self.list(router)).replicas
        wanted = ReplicaStanding.Value(f"REPLICA_STANDING_{name}")
        return sum(replica.standing == wanted for replica in listed) == count

    async def idle(self) -> bool:
        """Every living replica holds nothing and no router has anything open or queued."""
        listed = [await self.list(i) for i in range(2)]
        states = [r.state for answer in listed for r in answer.replicas if r.standing == 1]
        held = sum(s.used_blocks + s.committed_blocks + s.waiting + s.running for s in states)
        open_streams = sum(r.open_streams for answer in listed for r in answer.replicas)
        return held + open_streams + sum(answer.queued for answer in listed) == 0

    async def pending_reservations(self) -> list[bytes]:
        """Reservations that stand in Redis."""
        client = redis_client.from_url(self.redis.url)
        async with client:
            keys = [key async for key in client.scan_iter("*pending*")]
            return [field for key in keys for field in await client.hkeys(key)]

    async def no_reservation_pending(self) -> bool:
        return not await self.pending_reservations()

    async def settled(self) -> None:
        """Nothing leaked: no block, no ledger entry, no open stream, no reservation."""
        await until(self.idle, 20, "all blocks and ledger entries back")
        await until(self.no_reservation_pending, 20, "no reservation left in Redis")

    async def answers(self) -> dict[str, str]:
        """The text of each prompt, asked alone."""
        found = {}
        for prompt in PROMPTS:
            outcome = await ask(self.channel(0), question(prompt))
            assert outcome.finished, outcome
            found[prompt] = outcome.text
        return found


@pytest.fixture
async def stack(redis_server: RedisServer) -> AsyncIterator[Stack]:
    async with fleet(redis_server.url) as made:
        running = Stack(made, redis_server)
        try:
            yield await running.open()
        finally:
            await running.close()


async def flood(stack: Stack, count: int, rng: random.Random, cancels: float) -> list[Outcome]:
    """Many streams at once over both routers; a share is cancelled after a few tokens."""
    calls = []
    for n in range(count):
        cancel_after = rng.randrange(1, 8) if rng.random() < cancels else None
        calls.append(ask(stack.channel(n), question(rng.choice(PROMPTS)), cancel_after))
    return await asyncio.gather(*calls)


def check(outcomes: list[Outcome], answers: dict[str, str]) -> None:
    """Every stream has its shape; whole ones have the right text, cancelled ones the right beginning."""
    for outcome in outcomes:
        if outcome.cancelled:
            assert answers[outcome.prompt].startswith(outcome.text), outcome
            continue
        outcome.check_shape()
        assert outcome.finished, outcome
        assert outcome.text == answers[outcome.prompt], outcome


async def test_streams_cancels_a_drain_and_redis_restarted_empty(stack: Stack) -> None:
    rng = random.Random(7)
    answers = await stack.answers()
    assert len(set(answers.values())) > 10

    outcomes = await flood(stack, 100, rng, cancels=0.25)
    check(outcomes, answers)
    assert {name for o in outcomes for name in o.started} == {"replica-0", "replica-1"}
    await stack.settled()

    await _with_redis_restarted(stack, answers, rng)
    await stack.settled()

    await _with_a_drain(stack, answers, rng)
    await stack.settled()
    await _stops_cleanly(stack)


async def _with_redis_restarted(stack: Stack, answers: dict[str, str], rng: random.Random) -> None:
    """Redis dies under load and comes back empty: no caller notices."""
    running = asyncio.ensure_future(flood(stack, 60, rng, cancels=0.2))
    await until(lambda: _some_run(stack), 20, "streams run")
    await asyncio.to_thread(stack.redis.kill)
    outcomes = await flood(stack, 20, rng, cancels=0.0)
    check(outcomes, answers)
    assert (await stack.list(0)).admission_mode == AdmissionMode.ADMISSION_MODE_LOCAL
    await asyncio.to_thread(stack.redis.start)
    check(await running, answers)
    for router in range(2):
        await until(lambda r=router: _admits_by_redis(stack, r), 30, "admission by Redis again")


async def _some_run(stack: Stack) -> bool:
    return any(replica.state.running for replica in (await stack.list(0)).replicas)


async def _admits_by_redis(stack: Stack, router: int) -> bool:
    return (await stack.list(router)).admission_mode == AdmissionMode.ADMISSION_MODE_REDIS


async def _with_a_drain(stack: Stack, answers: dict[str, str], rng: random.Random) -> None:
    """A replica gets SIGTERM under load: its streams finish, the others go elsewhere, it exits with 0."""
    running = asyncio.ensure_future(flood(stack, 60, rng, cancels=0.2))
    await until(lambda: _some_run(stack), 20, "streams run")
    stack.replicas[0].send(signal.SIGTERM)
    check(await running, answers)
    assert await stack.replicas[0].ended(60) == 0
    outcomes = await flood(stack, 10, rng, cancels=0.0)
    check(outcomes, answers)
    assert {name for o in outcomes for name in o.started} == {"replica-1"}


async def _stops_cleanly(stack: Stack) -> None:
    for tier in (*stack.routers, stack.replicas[1]):
        tier.send(signal.SIGTERM)
    assert [await tier.ended(60) for tier in (*stack.routers, stack.replicas[1])] == [0, 0, 0]


# What Redis server holds the books makes no difference to a kill.
@pytest.mark.parametrize("redis_server", ["valkey"], indirect=True)
async def test_a_replica_killed_before_its_first_token_costs_no_answer(stack: Stack) -> None:
    questions = [question(f"{LONG} Lot {n}: how many sheep?", max_tokens=4) for n in range(6)]
    alone = [await ask(stack.channel(0), request) for request in questions]
    assert all(outcome.finished for outcome in alone)

    victim, running = await _begin_prefill(stack)
    victim.send(signal.SIGKILL)
    outcomes = await running
    for outcome, request in zip(outcomes, _fresh(), strict=True):
        outcome.check_shape()
        assert outcome.finished, outcome
        assert outcome.prompt == request.text
    survivors = {name for outcome in outcomes for name in outcome.started}
    assert survivors == {tier.name for tier in stack.replicas if tier is not victim}
    again = [await ask(stack.channel(1), request) for request in _fresh()]
    assert [o.text for o in again] == [o.text for o in outcomes]
    await stack.settled()


def _fresh() -> list[GenerateRequest]:
    """Long questions that no cache holds: seconds of prefill each."""
    return [question(f"Flock {n}. {LONG}", max_tokens=4) for n in range(6)]


async def _begin_prefill(stack: Stack) -> tuple[Tier, asyncio.Future[list[Outcome]]]:
    """Asks the long questions, and finds a replica that computes some of them without having answered any."""
    running = asyncio.ensure_future(asyncio.gather(*(ask(stack.channel(n), r) for n, r in enumerate(_fresh()))))
    name = await until(lambda: _prefilling(stack), 20, "a replica computes prompts")
    assert not running.done()
    return next(tier for tier in stack.replicas if tier.name == name), running


async def _prefilling(stack: Stack) -> str:
    listed = (await stack.list(0)).replicas
    return next((r.state.name for r in listed if r.state.running and r.state.waiting + r.state.running > 1), "")
