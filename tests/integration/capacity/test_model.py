"""Reordered, doubled, delayed and lost calls against a model: figures stay true and recover from any fault."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from integration.capacity.bench import SLOW, Bench
from integration.capacity.model import Outcome, PoolModel

from pagemill_common.capacity import Beat, Candidate, Granted, Reserve, ReserveReply
from pagemill_common.capacity.server import RedisServer
from pagemill_replica.front.ledger import Accepted, Ledger

pytestmark = pytest.mark.redis

CAPACITY = 100
NAMES = ("r1", "r2", "r3")
# All that is dead is removed at once: how much remains is not part of the model.
SETTINGS = dataclasses.replace(SLOW, ceilings=((0, 0.8), (1, 1.0)), reap_limit=1000)


@dataclass
class Replica:
    """One life of a replica: the real ledger, and the numbers of its beats."""

    name: str
    epoch: str
    ledger: Ledger
    seq: int = 0
    draining: bool = False
    live: list[int] = field(default_factory=list)
    ever_seen: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.name}:{self.epoch}"


@dataclass(frozen=True)
class BeatCall:
    replica: Replica
    beat: Beat
    not_after: int


@dataclass(frozen=True)
class ReserveCall:
    requests: tuple[Reserve, ...]
    not_after: int


@dataclass(frozen=True)
class ReleaseCall:
    id: str
    replicas: tuple[str, ...]


Call = BeatCall | ReserveCall | ReleaseCall


class CapacityMachine(RuleBasedStateMachine):
    """Calls lie in a network until a rule delivers, doubles or loses them, in any order."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.bench = Bench(client, SETTINGS)
        self.model = PoolModel(SETTINGS)
        self.network: list[Call] = []
        self.delivered: list[Call] = []
        self.replicas: dict[str, Replica] = {}
        self.grants: list[Granted] = []
        self.numbers = 0
        self.monotonic = 0.0

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @property
    def now(self) -> int:
        return self.bench.now_ms

    @initialize()
    def boot_all(self) -> None:
        for name in NAMES:
            self.boot(name)

    def boot(self, name: str) -> None:
        ledger = Ledger(CAPACITY, clock=lambda: self.monotonic, seen_life=3 * SETTINGS.ttl)
        self.replicas[name] = Replica(name, f"e{self.number()}", ledger)

    # Replicas.

    def take_beat(self, replica: Replica) -> BeatCall:
        replica.seq += 1
        beat = Beat(
            name=replica.name,
            epoch=replica.epoch,
            address=f"{replica.name}:1",
            model="m",
            model_id="id",
            block_size=16,
            capacity=CAPACITY,
            committed=replica.ledger.committed,
            draining=replica.draining,
            seen=replica.ledger.seen(SETTINGS.max_seen),
            seq=replica.seq,
        )
        return BeatCall(replica, beat, self.now + 100_000)

    @rule(name=st.sampled_from(NAMES))
    def send_beat(self, name: str) -> None:
        self.network.append(self.take_beat(self.replicas[name]))

    @rule(name=st.sampled_from(NAMES))
    def beat_without_fault(self, name: str) -> None:
        self.deliver(self.take_beat(self.replicas[name]), reply_lost=False)

    @rule(name=st.sampled_from(NAMES), draining=st.booleans())
    def drain(self, name: str, draining: bool) -> None:
        self.replicas[name].draining = draining

    @rule(name=st.sampled_from(NAMES))
    def restart_replica(self, name: str) -> None:
        self.boot(name)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), keep=st.booleans())
    def send_request(self, data: st.DataObject, keep: bool) -> None:
        """A router sends what it has a grant for, in time or not, once or twice."""
        at = data.draw(st.integers(0, len(self.grants) - 1))
        granted = self.grants[at] if keep else self.grants.pop(at)
        replica = self.replicas[granted.replica.partition(":")[0]]
        if replica.key != granted.replica:
            return
        before = replica.ledger.committed
        key = self.number()
        outcome = replica.ledger.accept(granted.id, 1, key, granted.need, granted.id)
        replica.ever_seen.add(granted.id)
        if isinstance(outcome, Accepted) and not outcome.again:
            replica.live.append(key)
            assert replica.ledger.committed == before + granted.need
        else:
            assert replica.ledger.committed == before

    @precondition(lambda self: any(r.live for r in self.replicas.values()))
    @rule(data=st.data())
    def end_request(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from([r for r in self.replicas.values() if r.live]))
        assert replica.ledger.end(replica.live.pop(data.draw(st.integers(0, len(replica.live) - 1))))

    # Routers.

    @rule(data=st.data(), members=st.integers(1, 4))
    def send_reserve(self, data: st.DataObject, members: int) -> None:
        requests = tuple(self.draw_request(data) for _ in range(members))
        self.network.append(ReserveCall(requests, self.now + data.draw(st.sampled_from([0, 1_000, 30_000]))))

    @rule(data=st.data())
    def reserve_without_fault(self, data: st.DataObject) -> None:
        self.deliver(ReserveCall((self.draw_request(data),), self.now + 1_000), reply_lost=False)

    def draw_request(self, data: st.DataObject) -> Reserve:
        names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        candidates = tuple(
            Candidate(
                self.replicas[name].key,
                data.draw(st.sampled_from([1, 10, 40, 80, 100, 101])),
                data.draw(st.sampled_from([0.0, 1.0, 2.5])),
            )
            for name in names
        )
        priority = data.draw(st.sampled_from([0, 1]))
        return Reserve(f"id{self.number()}", candidates, priority=priority, band=data.draw(st.sampled_from([0.0, 1.0])))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def send_release(self, data: st.DataObject) -> None:
        granted = self.grants.pop(data.draw(st.integers(0, len(self.grants) - 1)))
        self.network.append(ReleaseCall(granted.id, (granted.replica,)))

    # The network, the clock, the server.

    @precondition(lambda self: self.network)
    @rule(data=st.data(), twice=st.booleans(), reply_lost=st.booleans())
    def deliver_any(self, data: st.DataObject, twice: bool, reply_lost: bool) -> None:
        at = data.draw(st.integers(0, len(self.network) - 1))
        self.deliver(self.network[at] if twice else self.network.pop(at), reply_lost)

    @precondition(lambda self: self.delivered)
    @rule(data=st.data())
    def an_old_call_arrives_again(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, min(len(self.delivered), 8) - 1))
        self.deliver(self.delivered[-1 - at], reply_lost=True)

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))

    @rule(seconds=st.sampled_from([0.001, 1, 19, 21, 59, 61]))
    def time_passes(self, seconds: float) -> None:
        self.bench.advance(seconds)
        self.monotonic += seconds

    @rule(seconds=st.sampled_from([-600, 600]), beats=st.booleans())
    def the_clock_steps(self, seconds: float, beats: bool) -> None:
        self.bench.advance(seconds)
        if beats:
            for replica in self.replicas.values():
                self.deliver(self.take_beat(replica), reply_lost=True)

    @rule()
    def the_server_restarts_empty(self) -> None:
        """What was under way is lost with its connections."""
        keys = self.bench.client.keys(f"pagemill:{{{self.bench.keys.pool}}}:*")
        if keys:
            self.bench.client.delete(*keys)
        self.model = PoolModel(SETTINGS)
        self.network.clear()
        self.delivered.clear()

    @rule()
    def faults_end(self) -> None:
        """Two beats after the last fault Redis says what is true."""
        self.network.clear()
        self.delivered.clear()
        for _ in range(2):
            for replica in self.replicas.values():
                self.deliver(self.take_beat(replica), reply_lost=False)
        for replica in self.replicas.values():
            fields = self.bench.client.hmget(self.bench.keys.record(replica.key), "committed", "at")
            assert int(fields[0]) == replica.ledger.committed
            assert int(fields[1]) == self.now
            left = {i.decode() for i in self.bench.client.hkeys(self.bench.keys.pending(replica.key))}
            assert not left & replica.ever_seen
            assert replica.ledger.seen() == ()

    # Delivery, compared with the model.

    def deliver(self, call: Call, reply_lost: bool) -> None:
        self.delivered.append(call)
        if isinstance(call, BeatCall):
            self.deliver_beat(call, reply_lost)
        elif isinstance(call, ReserveCall):
            self.deliver_reserve(call, reply_lost)
        else:
            self.model.release(call.id, call.replicas)
            self.bench.release(call.id, *call.replicas)

    def deliver_beat(self, call: BeatCall, reply_lost: bool) -> None:
        fields = dataclasses.asdict(call.beat)
        name = fields.pop("name")
        not_after_s = (call.not_after - self.now) / 1000
        expected = self.model.heartbeat(call.beat, call.not_after, self.now)
        reply = self.bench.beat(name, not_after_s=not_after_s, **fields)
        assert reply.status.value == expected
        if expected == "ok":
            assert reply.pending == self.model.pending(call.beat.key, self.now)
        if reply.acknowledged and not reply_lost:
            call.replica.ledger.acknowledge(call.beat.seen)

    def deliver_reserve(self, call: ReserveCall, reply_lost: bool) -> None:
        expected = self.model.reserve(call.requests, call.not_after, self.now)
        replies = self.bench.reserve_all(*call.requests, not_after_s=(call.not_after - self.now) / 1000)
        assert [outcome(r) for r in replies] == expected
        for reply in replies:
            self.check_figures(reply)
            if isinstance(reply, Granted) and not reply_lost and reply.id not in {g.id for g in self.grants}:
                self.grants.append(reply)

    def check_figures(self, reply: ReserveReply) -> None:
        for figures in reply.figures:
            assert figures.standing.value == self.model.standing(figures.replica, self.now)
            assert figures.pending == self.model.pending(figures.replica, self.now) >= 0
            if isinstance(reply, Granted) and not reply.again and figures.replica == reply.replica:
                assert figures.committed + figures.pending <= figures.capacity

    @invariant()
    def no_ledger_is_above_its_capacity(self) -> None:
        for replica in self.replicas.values():
            assert 0 <= replica.ledger.committed <= CAPACITY


def outcome(reply: ReserveReply) -> Outcome:
    return ("granted", reply.replica, reply.need) if isinstance(reply, Granted) else (reply.reason.value,)


def test_any_order_of_calls_agrees_with_the_model(server: RedisServer) -> None:
    client = redis.Redis.from_url(server.url)
    try:
        run_state_machine_as_test(
            lambda: CapacityMachine(client),
            settings=settings(
                max_examples=50,
                stateful_step_count=40,
                deadline=None,
                database=None,
                # A case of forty rules takes minutes to shrink; what failed is printed whole.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        client.close()
