"""What the replica says of itself to routers and to Redis."""

from __future__ import annotations

import os
from collections.abc import Callable

from pagemill.v1 import model_pb2, replica_pb2
from pagemill_common.capacity import Beat
from pagemill_replica.front.link import EngineLink
from pagemill_replica.front.watch import WatchHub


class ReplicaView:
    """Builds state messages and heartbeats from what the link and the hub hold at that moment."""

    def __init__(self, name: str, epoch: str, hub: WatchHub) -> None:
        self.name = name
        self.epoch = epoch
        self.draining = False
        self.link: EngineLink | None = None
        self.model = model_pb2.Model()
        self.address = ""
        self.engine_pid: Callable[[], int] = int
        self.why_not_ready: Callable[[], str] = lambda: "starting"
        self._hub = hub

    def state(self) -> replica_pb2.ReplicaState:
        """For WatchState. Before the engine is warm the capacity is 0."""
        state = replica_pb2.ReplicaState(
            name=self.name,
            epoch=self.epoch,
            model=self.model,
            draining=self.draining,
            ready=not self.why_not_ready(),
            watching_routers=self._hub.distinct_routers,
            front_pid=os.getpid(),
            engine_pid=self.engine_pid(),
        )
        link = self.link
        if link is not None:
            state.capacity_blocks = link.ledger.capacity
            state.used_blocks = link.stats.used_blocks
            state.committed_blocks = max(0, link.ledger.committed)
            state.waiting = link.stats.waiting
            state.running = link.stats.running
            state.steps = link.stats.steps
            state.tokens_per_second = link.throughput.rate
        return state

    def beat(self) -> Beat:
        """For Redis. Only once the engine is warm."""
        link = self.link
        assert link is not None, "no heartbeat before the engine is warm"
        return Beat(
            name=self.name,
            epoch=self.epoch,
            address=self.address,
            model=self.model.name,
            model_id=self.model.model_id,
            block_size=self.model.block_size,
            capacity=link.ledger.capacity,
            used=link.stats.used_blocks,
            committed=link.ledger.committed,
            waiting=link.stats.waiting,
            running=link.stats.running,
            # A replica that is not ready takes nothing, which is what routers read from `draining`.
            draining=bool(self.why_not_ready()),
            tokens_per_second=link.throughput.rate,
            seen=link.ledger.seen(),
        )
