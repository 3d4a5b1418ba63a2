"""Prefix affinity: where the prompt's prefix is cached, or will be, unless that replica has too much to do.

Inputs: the prompt's block hashes, each replica's known cached blocks, fill. Parameters (constructor, with defaults):
`lead_blocks` 4: blocks that choose the place on the ring; `owner_gain` 0.25: what owning that place is worth, as a
share of the prompt; `slack` 0.25: how far above the mean fill a replica counts as balanced; `load_weight` 4: what a
fill of 1 above that costs, so that a full hit outweighs a quarter of the capacity in imbalance.
Trade-offs: saves prefill where prompts share beginnings. The ring sends first-time prefixes of one kind to one replica
before any event has told that they are cached. Load counts gradually: affinity bends under imbalance, never vanishes.
Prompts shorter than a block have no prefix to share and go to the emptiest.
Source: V. Mirrokni et al., Consistent Hashing with Bounded Loads, 2018.
"""

from __future__ import annotations

import random
from typing import ClassVar

from pagemill_router.fleet.view import FleetSnapshot, ReplicaView
from pagemill_router.policies.base import Candidate, RouteRequest, candidate, eligible, need_on
from pagemill_router.policies.ring import ring_of


class PrefixAffinity:
    """Rank by the share of the prompt to compute, plus what overload costs."""

    name: ClassVar[str] = "prefix_affinity"
    band: ClassVar[float] = 0.02

    def __init__(
        self, *, lead_blocks: int = 4, owner_gain: float = 0.25, slack: float = 0.25, load_weight: float = 4.0
    ) -> None:
        self._lead_blocks = lead_blocks
        self._owner_gain = owner_gain
        self._slack = slack
        self._load_weight = load_weight

    def pick(self, snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[Candidate]:
        """Cost is the missing share of the prompt plus the weighted excess of load."""
        views = eligible(snapshot, request, rng)
        if not views:
            return []
        fills = {view.key: view.fill(need_on(view, request)) for view in views}
        bound = (1.0 + self._slack) * sum(fills.values()) / len(fills)
        owner = self._owner(views, fills, bound, request)
        ranked = [self._rate(view, request, fills[view.key], bound, view.key == owner) for view in views]
        return sorted(ranked, key=lambda one: one.cost)

    def _rate(self, view: ReplicaView, request: RouteRequest, fill: float, bound: float, owner: bool) -> Candidate:
        hits = view.cached.leading(request.hashes)
        share = hits / len(request.hashes) if request.hashes else 0.0
        gain = max(share, self._owner_gain) if owner else share
        excess = max(0.0, fill - bound)
        # Without a prefix all are alike but for load, which then decides alone.
        cost = (1.0 - gain) + self._load_weight * excess if request.hashes else fill
        words = f"{hits} of {len(request.hashes)} blocks cached, fill {fill:.3f}"
        words += ", owns the prefix" if owner else ""
        words += f", {excess:.3f} above balance" if excess > 0 else ""
        return candidate(view, request, cost, words)

    def _owner(
        self, views: list[ReplicaView], fills: dict[str, float], bound: float, request: RouteRequest
    ) -> str | None:
        """The first replica on the ring from the prefix on whose load is within the bound."""
        if not request.hashes:
            return None
        lead = request.hashes[min(self._lead_blocks, len(request.hashes)) - 1]
        by_name = {view.name: view.key for view in views}
        for name in ring_of(tuple(sorted(by_name))).walk(lead):
            if fills[by_name[name]] <= bound:
                return by_name[name]
        return None
