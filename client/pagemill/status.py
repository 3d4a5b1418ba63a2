"""From a gRPC status to the exception that stands for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from pagemill import errors
from pagemill.reasons import Reason
from pagemill.v1 import internal_pb2

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

_DETAIL_TYPES: tuple[type[Message], ...] = (
    error_details_pb2.BadRequest,
    error_details_pb2.ErrorInfo,
    error_details_pb2.QuotaFailure,
    error_details_pb2.RequestInfo,
    error_details_pb2.ResourceInfo,
    error_details_pb2.RetryInfo,
    error_details_pb2.DebugInfo,
    internal_pb2.PartialOutput,
)

_LOST = (Reason.PARTIAL_OUTPUT, Reason.REPLICA_LOST)

_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True, slots=True)
class _Facts:
    """A status, taken apart."""

    code: grpc.StatusCode
    message: str
    details: tuple[Message, ...]
    reason: str | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after: float | None = None

    def first(self, kind: type[_M]) -> _M | None:
        """The first detail of a kind."""
        return next((d for d in self.details if isinstance(d, kind)), None)


def error_from_status(
    code: grpc.StatusCode,
    message: str,
    trailers: Iterable[tuple[str, str | bytes]] = (),
) -> errors.PagemillError:
    """The exception for a status; `trailers` are the call's trailing metadata, where the typed details are."""
    pairs = dict(trailers)
    details = _details(pairs.get(DETAILS_KEY, b""))
    info = next((d for d in details if isinstance(d, error_details_pb2.ErrorInfo)), None)
    facts = _Facts(
        code=code,
        message=message or _spoken(code),
        details=details,
        reason=info.reason if info is not None and info.reason else None,
        metadata=dict(info.metadata) if info is not None else {},
        retry_after=_retry_after(details, pairs.get(PUSHBACK_KEY)),
    )
    return _build(facts)


def _build(facts: _Facts) -> errors.PagemillError:
    error = _CLASSES.get(facts.code, errors.PagemillError)
    if facts.first(internal_pb2.PartialOutput) is not None or facts.reason in _LOST:
        error = errors.ReplicaLost
    elif facts.code is grpc.StatusCode.NOT_FOUND and _is_model(facts):
        error = errors.ModelNotFound
    elif facts.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if facts.first(error_details_pb2.QuotaFailure) is not None:
            error = errors.QuotaExceeded
        elif facts.reason == Reason.QUEUE_FULL:
            error = errors.QueueFull
    made = error(
        facts.message,
        code=facts.code,
        reason=facts.reason,
        retry_after=facts.retry_after,
        details=facts.details,
        metadata=facts.metadata,
    )
    _fill(made, facts)
    return made


def _fill(made: errors.PagemillError, facts: _Facts) -> None:
    """Sets the attributes that only some classes have."""
    match made:
        case errors.InvalidRequest():
            made.violations = _violations(facts)
        case errors.QuotaExceeded():
            quota = facts.first(error_details_pb2.QuotaFailure)
            made.violations = tuple(
                errors.Violation(v.subject, v.description) for v in (quota.violations if quota else ())
            )
        case errors.NotFound():
            made.resource = _resource_name(facts)
        case errors.AlreadyExists():
            made.request_id = _resource_name(facts)
        case errors.ReplicaLost():
            partial = facts.first(internal_pb2.PartialOutput)
            made.tokens_per_choice = tuple(partial.tokens_per_choice) if partial else ()
        case errors.DeadlineExceeded():
            made.stage = facts.metadata.get("stage")
        case errors.NotSupported():
            made.field = facts.metadata.get("field") or next((v.field for v in _violations(facts)), None)
        case errors.InternalError():
            made.incident = facts.metadata.get("incident") or _request_info_id(facts)
        case _:
            pass


_CLASSES: dict[grpc.StatusCode, type[errors.PagemillError]] = {
    kind.default_code: kind
    for kind in (
        errors.InvalidRequest,
        errors.TooLong,
        errors.NotFound,
        errors.AlreadyExists,
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.Exhausted,
        errors.Unavailable,
        errors.DeadlineExceeded,
        errors.NotSupported,
        errors.Cancelled,
        errors.InternalError,
    )
}


def _details(value: str | bytes) -> tuple[Message, ...]:
    if not value:
        return ()
    status = status_pb2.Status()
    try:
        status.ParseFromString(value if isinstance(value, bytes) else value.encode("latin-1"))
    except DecodeError:
        return ()
    return tuple(_unpacked(any_message) for any_message in status.details)


def _unpacked(packed: Any) -> Message:
    for kind in _DETAIL_TYPES:
        if packed.TypeName() == kind.DESCRIPTOR.full_name:
            message = kind()
            try:
                packed.Unpack(message)
            except DecodeError:
                return packed
            return message
    return packed


def _retry_after(details: Sequence[Message], pushback: str | bytes | None) -> float | None:
    """Seconds from RetryInfo, else from the pushback; a negative pushback says that no retry makes sense."""
    for detail in details:
        if isinstance(detail, error_details_pb2.RetryInfo):
            delay: float = detail.retry_delay.ToNanoseconds() / 1e9
            return delay
    try:
        milliseconds = int(pushback) if pushback is not None else -1
    except ValueError:
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


def _violations(facts: _Facts) -> tuple[errors.Violation, ...]:
    bad = facts.first(error_details_pb2.BadRequest)
    return tuple(errors.Violation(v.field, v.description) for v in (bad.field_violations if bad else ()))


def _resource_name(facts: _Facts) -> str:
    resource = facts.first(error_details_pb2.ResourceInfo)
    return str(resource.resource_name) if resource else ""


def _is_model(facts: _Facts) -> bool:
    resource = facts.first(error_details_pb2.ResourceInfo)
    return resource is not None and resource.resource_type.rpartition(".")[2].lower() in ("model", "adapter")


def _request_info_id(facts: _Facts) -> str | None:
    request = facts.first(error_details_pb2.RequestInfo)
    return request.request_id if request and request.request_id else None


def _spoken(code: grpc.StatusCode) -> str:
    return str(code.name).replace("_", " ").lower()
