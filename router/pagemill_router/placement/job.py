"""One call on its way: what the placer and the relay need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagemill.v1 import internal_pb2
from pagemill_router.policies.base import RouteRequest


@dataclass(slots=True)
class Job:
    """Fixed at intake, but for `stage` and `last_failure_at`."""

    request_id: str
    call_id: str
    """Drawn by the router, one for each call of a caller."""
    model: str
    """The served name."""
    prompt_tokens: int
    expected_output: int
    """Tokens of output that admission counts on."""
    total_blocks: int
    """For prompt and expected output."""
    total_tokens: int
    """Prompt and all of max_tokens: what a replica must be able to hold."""
    hashes: Sequence[bytes]
    """The chain of the prompt's full blocks."""
    ordinal: int
    """Calls that this router took before."""
    arrived: float
    """Monotonic seconds."""
    deadline: float
    """Monotonic seconds."""
    forward: Callable[[internal_pb2.Placement, float], bytes]
    """The serialised request for a replica, given its placement and the seconds left."""
    choices: int = 1
    with_token_ids: bool = True
    priority: int = 0
    stage: str = "queue"
    """Where it is, as DEADLINE_EXCEEDED reports it: queue, prefill or decode."""
    last_failure_at: float = float("-inf")
    """When an attempt last failed."""

    def route(self, excluded: frozenset[str] = frozenset()) -> RouteRequest:
        """The call as policies see it, `excluded` replicas left out."""
        return RouteRequest(
            model=self.model,
            total_blocks=self.total_blocks,
            total_tokens=self.total_tokens,
            hashes=self.hashes,
            ordinal=self.ordinal,
            excluded=excluded,
        )
