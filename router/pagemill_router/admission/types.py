"""What admission is asked and what it answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pagemill_router.policies.base import Candidate


class Mode(StrEnum):
    """How a request was admitted."""

    REDIS = "redis"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants room."""

    candidates: Sequence[Candidate]
    """Best first, at least one, no replica twice."""
    band: float
    """Candidates that cost at most this much more than the cheapest with room are as good as it."""
    priority: int = 0
    hold: str = ""
    """The request's own id once it has waited long: some replica then keeps for it what frees up."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Room on a replica."""

    candidate: Candidate
    reservation_id: str
    mode: Mode
    usable_until: float = math.inf
    """Monotonic time after which it must not be sent: reserve again."""
    reply: str = ""
    """What was answered, for the span."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """No candidate has room."""

    mode: Mode
    reason: str
    retry_after: float
    """Seconds; the best guess at when to ask again."""
    reply: str = ""
    """What was answered, for the span."""


Answer = Grant | NoRoom
