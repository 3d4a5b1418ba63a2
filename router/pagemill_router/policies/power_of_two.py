"""Power of two choices: of two replicas drawn at random, the emptier one.

Inputs: fill of two replicas. Parameters: none.
Trade-offs: nearly as even as least loaded, and robust where figures are stale, since routers draw different pairs;
blind to caches. The others follow in random order, for admission to fall back on.
Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pagemill_router.fleet.view import FleetSnapshot
from pagemill_router.policies.base import Candidate, RouteRequest, candidate, eligible, need_on


class PowerOfTwo:
    """Rank the emptier of a random pair first, its partner second, the rest after them."""

    name: ClassVar[str] = "power_of_two"
    band: ClassVar[float] = 0.5

    def pick(self, snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[Candidate]:
        """Cost is the rank."""
        views = eligible(snapshot, request, rng)
        pair = sorted(views[:2], key=lambda view: view.fill(need_on(view, request)))
        labels = ["emptier of the pair", "fuller of the pair"]
        ranked = []
        for rank, view in enumerate(pair + views[2:]):
            reason = labels[rank] if rank < 2 else "not drawn"
            ranked.append(candidate(view, request, float(rank), f"{reason}, fill {view.fill():.3f}"))
        return ranked
