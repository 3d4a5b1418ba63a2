"""The fleet as plain frozen data: what policies, admission and `ListReplicas` read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Standing(StrEnum):
    """A replica's standing with this router."""

    READY = "ready"
    NOT_READY = "not_ready"
    DRAINING = "draining"
    CORDONED = "cordoned"
    LOST = "lost"


class BlockIndex(Protocol):
    """Which blocks a replica is known to hold."""

    def __len__(self) -> int:
        """Blocks known."""
        ...

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of `hashes`, a chain from the start of a prompt, are known without a gap."""
        ...


class _Nothing:
    """No block is known."""

    def __len__(self) -> int:
        return 0

    def leading(self, hashes: Sequence[bytes]) -> int:
        return 0


NOTHING: BlockIndex = _Nothing()


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica at one moment. Block figures are in blocks of the pool's block size."""

    address: str
    """host:port."""
    name: str = ""
    """Its name in the pool; empty before it has spoken."""
    epoch: str = ""
    """Drawn by the replica when it started."""
    model: str = ""
    """The served name of its model."""
    aliases: tuple[str, ...] = ()
    standing: Standing = Standing.NOT_READY
    reason: str = ""
    """Why it gets no requests, where it gets none."""
    max_request_tokens: int = 0
    """The largest prompt and output together; 0 where it has not said."""
    capacity: int = 0
    used: int = 0
    committed: int = 0
    pending: int = 0
    """Reserved or sent there, and not yet taken over by the replica."""
    waiting: int = 0
    running: int = 0
    watching_routers: int = 1
    open_streams: int = 0
    """Streams of this router there."""
    last_heard: float | None = None
    """Monotonic seconds; None before it has spoken."""
    cached: BlockIndex = field(default=NOTHING, compare=False)
    """Blocks in its prefix cache."""
    held: BlockIndex = field(default=NOTHING, compare=False)
    """Of these, blocks that live requests of this router hold."""

    @property
    def key(self) -> str:
        """`name:epoch`, its identity in Redis."""
        return f"{self.name}:{self.epoch}"

    @property
    def ready(self) -> bool:
        """It may get requests."""
        return self.standing is Standing.READY

    def fill(self, need: int = 0) -> float:
        """(committed + pending + need) / capacity; infinite where there is no capacity."""
        if self.capacity <= 0:
            return float("inf")
        return (self.committed + self.pending + need) / self.capacity

    def serves(self, model: str) -> bool:
        """It answers to this served name."""
        return self.model == model


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All replicas known at one moment, in no particular order."""

    replicas: tuple[ReplicaView, ...] = ()

    def of_model(self, model: str) -> tuple[ReplicaView, ...]:
        """Those that serve `model`, whatever their standing."""
        return tuple(view for view in self.replicas if view.serves(model))

    def ready(self, model: str) -> tuple[ReplicaView, ...]:
        """Those that serve `model` and may get requests."""
        return tuple(view for view in self.replicas if view.ready and view.serves(model))
