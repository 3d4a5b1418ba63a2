"""The pool's times and limits: one name, one default, one place."""

from __future__ import annotations

from dataclasses import dataclass

SEND_MARGIN = 0.5
"""Seconds before its expiry from which a reservation is no longer sent to a replica."""


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """Times in seconds. Every router and replica of a pool should have the same; raises ValueError naming the field
    at fault.
    """

    ttl: float = 3.0
    """Life of a reservation that no replica has seen."""
    max_ttl: float = 10.0
    """The longest life any promise may claim. One that claims more comes from a clock that was set back, and is dead.
    """
    stale_after: float = 1.5
    """A replica whose last heartbeat is older gets no reservation."""
    record_ttl: float = 10.0
    """A replica's record, and the pool's facts after the last replica, vanish after this."""
    hold_ttl: float = 1.0
    """Life of a hold that is not renewed."""
    reserve_deadline: float = 0.25
    """The longest that a reserve may add to a request before it is unavailable."""
    command_timeout: float = 1.0
    """The longest wait for any other answer of Redis."""
    connections: int = 4
    """Connections to Redis, at most."""
    cost_band: float = 0.0
    """Candidates that cost at most this much more than the cheapest with room are as good as it; the emptiest of them
    wins."""
    ceilings: tuple[tuple[int, float], ...] = ()
    """(lowest priority of the class, share of the capacity it may fill), any order. Priorities below all classes take
    the lowest class; without classes everyone may fill all."""
    reap_limit: int = 64
    """Dead entries removed from one replica's pending in one call, at most."""
    max_seen: int = 512
    """Reservation ids in one heartbeat, at most."""

    def __post_init__(self) -> None:
        for name in ("ttl", "max_ttl", "stale_after", "record_ttl", "hold_ttl", "reserve_deadline", "command_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("connections", "reap_limit", "max_seen"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.ttl > self.max_ttl:
            raise ValueError("ttl must not exceed max_ttl")
        if self.hold_ttl > self.max_ttl:
            raise ValueError("hold_ttl must not exceed max_ttl")
        if self.stale_after > self.ttl - SEND_MARGIN:
            # A reservation must outlive the heartbeats in which its replica could have reported it.
            raise ValueError(f"stale_after must be at most ttl - {SEND_MARGIN}")
        if self.record_ttl < 2 * self.stale_after:
            raise ValueError("record_ttl must be at least twice stale_after")
        if self.reap_limit > 1000:
            raise ValueError("reap_limit must be at most 1000")
        if self.cost_band < 0:
            raise ValueError("cost_band must not be negative")
        for _, share in self.ceilings:
            if not 0 < share <= 1:
                raise ValueError("ceilings must be shares in (0, 1]")

    @property
    def tombstone_ttl(self) -> float:
        """How long a seen id stays spent."""
        return 2 * self.ttl

    def ceiling(self, priority: int) -> float:
        """The share of a replica's capacity up to which a request of this priority is admitted."""
        if not self.ceilings:
            return 1.0
        classes = sorted(self.ceilings)
        reached = [share for lowest, share in classes if priority >= lowest]
        return reached[-1] if reached else classes[0][1]
