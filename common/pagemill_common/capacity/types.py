"""What replicas and routers say to the pool and hear from it: plain values. Blocks are KV-cache blocks, times are
seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from pagemill_common.capacity.keys import check_replica_key, replica_key

MAX_BATCH = 32
"""Requests in one reserve call, at most."""


class Standing(StrEnum):
    """What a replica's record says of its fitness for new requests."""

    READY = "ready"
    DRAINING = "draining"
    STALE = "stale"
    """Its last heartbeat is too old, or from the future."""
    UNKNOWN = "unknown"
    """It has no record under this epoch."""


class RefusedReason(StrEnum):
    """Why a reserve got no reservation."""

    FULL = "full"
    """No candidate has room; wait or place it elsewhere."""
    TOO_LARGE = "too_large"
    """It would not fit the share of its priority class even on an empty candidate."""
    DRAINING = "draining"
    """Every candidate drains."""
    STALE = "stale"
    """No candidate has a fresh heartbeat: as good as having no Redis, never the same as full."""
    SEEN = "seen"
    """A replica has seen this id, or it was released. Reserve under another id."""
    LATE = "late"
    """The call arrived after its time and wrote nothing."""


class BeatStatus(StrEnum):
    """What became of a heartbeat."""

    OK = "ok"
    OLD = "old"
    """A beat of this or a later number was there already; nothing was written."""
    LATE = "late"
    """It arrived after its time and wrote nothing."""
    REFUSED = "refused"
    """The replica does not fit the pool; nothing was written."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a replica truly has at one moment, taken in one turn of its loop together with `seen`."""

    name: str
    epoch: str
    address: str
    """host:port under which routers reach it."""
    model: str
    """Served name."""
    model_id: str
    """Must equal that of the pool."""
    block_size: int
    """Tokens in a block. Must equal that of the pool."""
    capacity: int
    """Blocks in the allocator."""
    used: int = 0
    """Blocks held by live requests, shared ones once."""
    committed: int = 0
    """The sum over live requests of the larger of blocks held and blocks admitted."""
    waiting: int = 0
    running: int = 0
    draining: bool = False
    tokens_per_second: float = 0.0
    """Measured throughput."""
    seen: tuple[str, ...] = ()
    """Reservation ids accepted, refused or ended and not yet acknowledged."""
    seq: int = 0
    """Rises with every beat of an epoch, from 1. HeartbeatLoop sets it."""

    @property
    def key(self) -> str:
        """The replica's identity in keys."""
        return replica_key(self.name, self.epoch)


@dataclass(frozen=True, slots=True)
class BeatReply:
    """The pool's answer to a heartbeat."""

    status: BeatStatus
    acknowledged: bool
    """The beat stands in Redis: its seen ids need not be sent again."""
    pending: int = 0
    """Blocks reserved on this replica by requests that it has not seen."""
    message: str = ""
    """For REFUSED: what differs."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may take a request."""

    replica: str
    """`name:epoch`."""
    need: int
    """Blocks that must be free there, at least 1."""
    cost: float = 0.0
    """What the policy thinks it costs there; any unit, smaller is better, the same unit as the band."""

    def __post_init__(self) -> None:
        check_replica_key(self.replica)
        if self.need < 1:
            raise ValueError("need must be at least 1")
        if not math.isfinite(self.cost):
            raise ValueError("cost must be finite")


@dataclass(frozen=True, slots=True)
class Reserve:
    """One request that wants room on one of its candidates."""

    id: str
    """Drawn at random for each attempt, 1 to 128 printable characters without spaces. The same id twice is the same
    reservation."""
    candidates: tuple[Candidate, ...]
    """At least one, no replica twice. Ties go to the earlier."""
    priority: int = 0
    """Larger is more urgent; decides the ceiling, and which holds count."""
    band: float | None = None
    """Overrides `cost_band` of the settings."""
    hold: str = ""
    """The waiting request's own id, once it has waited long: where there is no room, one replica keeps for it what
    frees up."""

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("hold", self.hold or "-")):
            if not (0 < len(value) <= 128 and value.isascii() and value.isprintable() and " " not in value):
                raise ValueError(f"{name} must be 1 to 128 printable ASCII characters without spaces")
        if not self.candidates:
            raise ValueError("candidates must not be empty")
        if len({c.replica for c in self.candidates}) != len(self.candidates):
            raise ValueError("candidates must not name a replica twice")
        if not -(2**31) <= self.priority < 2**31:
            raise ValueError("priority must fit 32 bits")
        if self.band is not None and not 0 <= self.band < math.inf:
            raise ValueError("band must be finite and not negative")


@dataclass(frozen=True, slots=True)
class Figures:
    """What Redis knows of one replica at the time of a reply."""

    replica: str
    standing: Standing
    capacity: int = 0
    used: int = 0
    committed: int = 0
    pending: int = 0
    """Blocks reserved by requests that the replica has not seen."""
    held: int = 0
    """Blocks that a waiting request holds back."""
    waiting: int = 0
    running: int = 0
    tokens_per_second: float = 0.0
    block_size: int = 0
    age: float | None = None
    """Seconds since its last heartbeat; None where there is none."""

    @property
    def free(self) -> int:
        """Blocks neither committed nor reserved. Negative where output outgrew what was admitted."""
        return self.capacity - self.committed - self.pending


@dataclass(frozen=True, slots=True)
class Granted:
    """A reservation."""

    id: str
    replica: str
    need: int
    expires_in: float
    """Seconds from the reply. With less than `settings.SEND_MARGIN` left, reserve again under another id."""
    again: bool = False
    """The id had this reservation already."""
    figures: tuple[Figures, ...] = field(default=(), repr=False)
    """Of every candidate of the call, this reservation included."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No reservation."""

    id: str
    reason: RefusedReason
    retry_after: float
    """The best guess at when to ask again."""
    held_on: str = ""
    """The replica that holds room back for it."""
    figures: tuple[Figures, ...] = field(default=(), repr=False)
    """Of every candidate of the call."""


ReserveReply = Granted | Refused


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the pool, as discovery sees it."""

    name: str
    epoch: str
    address: str
    model: str
    model_id: str
    block_size: int
    since: float
    """Redis time of its first heartbeat, seconds since the Unix epoch."""
    figures: Figures

    @property
    def key(self) -> str:
        """The replica's identity in keys."""
        return replica_key(self.name, self.epoch)

    @property
    def fresh(self) -> bool:
        """Its last heartbeat is recent."""
        return self.figures.standing in (Standing.READY, Standing.DRAINING)
