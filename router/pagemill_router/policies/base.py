"""What every policy is given and what it answers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from pagemill_router.fleet.view import FleetSnapshot, ReplicaView


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a policy may know of a request."""

    model: str
    """The served name, resolved from aliases."""
    total_blocks: int
    """Blocks for prompt and expected output, before any hit."""
    total_tokens: int = 0
    """Prompt and most output together."""
    hashes: Sequence[bytes] = ()
    """The chain of hashes of the prompt's full blocks."""
    ordinal: int = 0
    """Requests that this router placed before."""
    excluded: frozenset[str] = field(default_factory=frozenset)
    """`name:epoch` of replicas that this call has tried."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that may take the request."""

    replica: ReplicaView
    cost: float
    """Lower is better. Admission takes the emptiest among those within the policy's band of the cheapest."""
    hit_blocks: int
    """Leading blocks of the prompt known to be cached there."""
    need: int
    """Blocks to reserve there."""
    reason: str
    """What decided, in words."""


class Policy(Protocol):
    """Ranks the eligible replicas; pure, so that it runs in tests and simulators as it does in production."""

    name: ClassVar[str]
    band: ClassVar[float]
    """Candidates whose cost lies within this of the cheapest count as equally good."""

    def pick(self, snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[Candidate]:
        """All eligible replicas, best first; empty where there are none."""
        ...


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return math.ceil(tokens / block_size)


def refusal(view: ReplicaView, request: RouteRequest) -> str:
    """Why a replica may not take the request; empty where it may."""
    if not view.serves(request.model):
        return f"serves {view.model or 'no model yet'}"
    if not view.ready:
        return view.reason or view.standing.value
    if view.key in request.excluded:
        return "tried by this call already"
    if request.total_blocks > view.capacity:
        return f"needs {request.total_blocks} blocks, the replica has {view.capacity}"
    if request.total_tokens > view.max_request_tokens > 0:
        return f"may reach {request.total_tokens} tokens, the replica takes {view.max_request_tokens}"
    return ""


def eligible(snapshot: FleetSnapshot, request: RouteRequest, rng: random.Random) -> list[ReplicaView]:
    """The replicas that may take the request, shuffled: a stable sort afterwards breaks ties at random.

    Routers that see the same snapshot would otherwise all break a tie alike and flood one replica.
    """
    views = [view for view in snapshot.replicas if not refusal(view, request)]
    rng.shuffle(views)
    return views


def need_on(view: ReplicaView, request: RouteRequest) -> int:
    """Blocks to reserve: hits on blocks that live requests hold are free, an idle cached block is not."""
    return max(1, request.total_blocks - view.held.leading(request.hashes))


def candidate(view: ReplicaView, request: RouteRequest, cost: float, reason: str) -> Candidate:
    """A candidate with its hits and need filled in."""
    hits = view.cached.leading(request.hashes)
    return Candidate(replica=view, cost=cost, hit_blocks=hits, need=need_on(view, request), reason=reason)
