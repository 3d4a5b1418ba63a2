"""Round robin: each replica in turn.

Inputs: the request's ordinal and the replicas' names. Parameters: none.
Trade-offs: blind to load and to caches; fair where requests are alike. The order is by name, so the turn depends on the
ordinal alone; routers count apart, so their turns differ.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pagemill_router.fleet.view import FleetSnapshot
from pagemill_router.policies.base import Candidate, RouteRequest, candidate, eligible


class RoundRobin:
    """Rank by distance from the turn that the ordinal gives."""

    name: ClassVar[str] = "round_robin"
    band: ClassVar[float] = 0.5

    def pick(self, snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[Candidate]:
        """Cost is the number of turns to wait."""
        views = sorted(eligible(snapshot, request, rng), key=lambda view: view.name)
        if not views:
            return []
        start = request.ordinal % len(views)
        turn = views[start:] + views[:start]
        return [candidate(view, request, float(rank), f"turn +{rank}") for rank, view in enumerate(turn)]
