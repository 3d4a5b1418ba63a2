"""What comes with a call besides its message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.context import Context

from pagemill.v1 import generation_pb2
from pagemill_common import telemetry

PREVIOUS_ATTEMPTS = "grpc-previous-rpc-attempts"
"""Set by gRPC where a call is its own retry."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call as it arrived. Times are monotonic seconds."""

    at: float
    trace: Context
    deadline: float | None
    """The caller's gRPC deadline."""
    repeated: bool
    """gRPC itself repeats an earlier try of this call."""


def arrival(context: grpc.aio.ServicerContext[Any, Any], clock: Callable[[], float]) -> Arrival:
    """Reads it from the call's context."""
    now = clock()
    metadata = context.invocation_metadata() or ()
    remaining = context.time_remaining()
    return Arrival(
        at=now,
        trace=telemetry.extract(metadata),
        deadline=None if remaining is None else now + remaining,
        repeated=any(key == PREVIOUS_ATTEMPTS for key, _ in metadata),
    )


def time_limit(request: generation_pb2.GenerateRequest, arrived: Arrival, *, default: float, longest: float) -> float:
    """Seconds from arrival in which the request must be done: the shortest of the caller's limits and ours."""
    asked = [longest]
    if request.HasField("timeout"):
        asked.append(request.timeout.ToNanoseconds() / 1e9)
    if request.placement.continuation.HasField("remaining"):
        asked.append(request.placement.continuation.remaining.ToNanoseconds() / 1e9)
    if arrived.deadline is not None:
        asked.append(arrived.deadline - arrived.at)
    return min(asked) if len(asked) > 1 else min(default, longest)
