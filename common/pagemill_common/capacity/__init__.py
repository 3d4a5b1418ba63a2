"""What each replica can take, in Redis: heartbeats, reservations and discovery. See docs/admission.md."""

from pagemill_common.capacity.batcher import ReserveBatcher
from pagemill_common.capacity.breaker import Breaker, BreakerState
from pagemill_common.capacity.client import CapacityPool
from pagemill_common.capacity.errors import CapacityUnavailable, UnavailableReason
from pagemill_common.capacity.heartbeat import HeartbeatLoop
from pagemill_common.capacity.keys import replica_key
from pagemill_common.capacity.settings import SEND_MARGIN, CapacitySettings
from pagemill_common.capacity.types import (
    MAX_BATCH,
    Beat,
    BeatReply,
    BeatStatus,
    Candidate,
    Figures,
    Granted,
    Member,
    Refused,
    RefusedReason,
    Reserve,
    ReserveReply,
    Standing,
)

__all__ = [
    "MAX_BATCH",
    "SEND_MARGIN",
    "Beat",
    "BeatReply",
    "BeatStatus",
    "Breaker",
    "BreakerState",
    "Candidate",
    "CapacityPool",
    "CapacitySettings",
    "CapacityUnavailable",
    "Figures",
    "Granted",
    "HeartbeatLoop",
    "Member",
    "Refused",
    "RefusedReason",
    "Reserve",
    "ReserveBatcher",
    "ReserveReply",
    "Standing",
    "UnavailableReason",
    "replica_key",
]
