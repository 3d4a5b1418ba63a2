"""What to do when an attempt fails: a pure judgement over the status that came back.

| what came back | before the first token | after it |
|---|---|---|
| UNAVAILABLE, lost connection, DRAINING, WRONG_EPOCH, REPLICA_LOST | another replica | lost |
| REPLICA_FULL | wait for room, there or elsewhere | - |
| CANCELLED without our details | the same | lost |
| a caller's own fault, a deadline, a bug that names its incident | passed on | passed on |
| a broken stream | another replica | lost |

A bug that the replica itself reports is passed on, not tried elsewhere: a request that trips it would trip it on every
replica. For the same reason a call under which two replicas were lost gets no third (`Failure.lost`).
The same code without our details comes from the transport, and counts as a lost connection. A CANCELLED that nobody
here asked for is how gRPC turns away calls that pile up unaccepted: the replica is busy, and has not failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pagemill.reasons import ERROR_DOMAIN, Reason
from pagemill_common.errors import STATUS_DETAILS_KEY, StatusError

_TRANSPORT_CODES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL})
_REPLICA_REASONS = frozenset(
    {Reason.DRAINING, Reason.WRONG_EPOCH, Reason.REPLICA_LOST, Reason.PARTIAL_OUTPUT, Reason.SUPERSEDED}
)


class Verdict(StrEnum):
    """What a failed attempt means for the call."""

    ELSEWHERE = "elsewhere"
    """The replica failed: try another."""
    FULL = "full"
    """The replica has no room after all: wait for room, there or elsewhere."""
    PASS = "pass"
    """The status is the caller's."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt ended, if not well."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    """The reason in our ErrorInfo; empty where the status is not ours."""
    trailers: tuple[tuple[str, str | bytes], ...] = ()
    """The trailers that carry its details, as they came."""

    @property
    def verdict(self) -> Verdict:
        """What it means for a call that has delivered nothing."""
        if self.reason == Reason.REPLICA_FULL:
            return Verdict.FULL
        if self.reason in _REPLICA_REASONS or self.code is grpc.StatusCode.UNAVAILABLE:
            return Verdict.ELSEWHERE
        if self.code in _TRANSPORT_CODES and not self.reason:
            return Verdict.ELSEWHERE
        if self.code is grpc.StatusCode.CANCELLED and not self.reason:
            return Verdict.FULL
        return Verdict.PASS

    @property
    def lost(self) -> bool:
        """The replica may have died of the call: it has not refused it."""
        return self.verdict is Verdict.ELSEWHERE and self.reason in ("", Reason.REPLICA_LOST, Reason.PARTIAL_OUTPUT)

    def passed_on(self) -> StatusError:
        """The same status for the caller, details unchanged."""
        return _PassedOnError(self)


class _PassedOnError(StatusError):
    """A replica's status: code, message and trailers as they came."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.code, failure.message)
        self._failure = failure

    @property
    def reason(self) -> str:
        return self._failure.reason

    def to_rpc_status(self) -> status_pb2.Status:
        for key, value in self._failure.trailers:
            if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
                return status_pb2.Status.FromString(value)
        return super().to_rpc_status()

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._failure.trailers or super().trailing_metadata()


LOST = Failure(grpc.StatusCode.UNAVAILABLE, "the replica stopped answering", Reason.REPLICA_LOST)
"""The attempt was given up on: the replica's state stream ended before the first frame, or its channel was closed."""


def broken(message: str) -> Failure:
    """The replica sent what it must not."""
    return Failure(grpc.StatusCode.UNAVAILABLE, f"the replica's stream broke: {message}", Reason.REPLICA_LOST)


def from_rpc_error(error: grpc.aio.AioRpcError) -> Failure:
    """The failure that a replica's status tells."""
    trailers = tuple((str(key), value) for key, value in (error.trailing_metadata() or ()))
    kept = tuple((key, value) for key, value in trailers if key.startswith("grpc-"))
    return Failure(error.code(), error.details() or "", _reason(kept), kept)


def _reason(trailers: Sequence[tuple[str, str | bytes]]) -> str:
    for key, value in trailers:
        if key != STATUS_DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:
            return ""
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
                return str(info.reason)
    return ""
