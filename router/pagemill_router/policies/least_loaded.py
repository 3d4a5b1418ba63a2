"""Least loaded: the replica with the smallest share of its blocks spoken for.

Inputs: committed, pending and capacity of each replica, and the request's need there. Parameters: the band, 0.02 of the
capacity.
Trade-offs: best spread of memory; blind to caches. All routers agree on the emptiest, so with stale figures they agree
on the wrong one: the random tie-break and admission's own look at the figures inside the band keep a burst apart.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pagemill_router.fleet.view import FleetSnapshot
from pagemill_router.policies.base import Candidate, RouteRequest, candidate, eligible, need_on


class LeastLoaded:
    """Rank by fill after the request."""

    name: ClassVar[str] = "least_loaded"
    band: ClassVar[float] = 0.02

    def pick(self, snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[Candidate]:
        """Cost is (committed + pending + need) / capacity."""
        ranked = [
            candidate(view, request, fill, f"fill {fill:.3f}")
            for view in eligible(snapshot, request, rng)
            for fill in (view.fill(need_on(view, request)),)
        ]
        return sorted(ranked, key=lambda one: one.cost)
