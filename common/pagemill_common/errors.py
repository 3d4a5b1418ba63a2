"""Status errors: what a server raises so that a caller gets a gRPC status with typed details.

One function for each row of the error table. The serialised `google.rpc.Status` stays below `MAX_STATUS_BYTES`, because
gRPC drops a status whose trailers pass 8 KiB: long texts are cut, at most `MAX_VIOLATIONS` violations are listed beside
their count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from pagemill.reasons import ERROR_DOMAIN, Reason
from pagemill.v1 import internal_pb2

__all__ = [
    "ERROR_DOMAIN",
    "MAX_STATUS_BYTES",
    "MAX_VIOLATIONS",
    "PUSHBACK_KEY",
    "STATUS_DETAILS_KEY",
    "Reason",
    "StatusError",
]

MAX_STATUS_BYTES = 3000
"""Bound of the serialised status, in bytes: below 4 KiB after base64."""
MAX_VIOLATIONS = 16
"""Field violations listed in one status; the message tells the full count."""
STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailer with the serialised google.rpc.Status."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailer that tells gRPC's own retries when to try again; negative: never."""

_MAX_MESSAGE = 400
_MAX_FIELD = 96
_MAX_DESCRIPTION = 320
_MAX_DESCRIPTIONS = 1600
_MAX_VALUE = 160


class StatusError(Exception):
    """A failure with a gRPC status code, a message for people and typed details for programs.

    `retry_after` is in seconds; None means that a retry is pointless or that nobody can say when.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        details: Sequence[Message] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = _cut(message, _MAX_MESSAGE)
        self.details = tuple(details)
        self.retry_after = retry_after

    @property
    def reason(self) -> str:
        """The reason of the ErrorInfo among the details, or an empty string."""
        for detail in self.details:
            if isinstance(detail, error_details_pb2.ErrorInfo):
                return str(detail.reason)
        return ""

    def to_rpc_status(self) -> status_pb2.Status:
        """The google.rpc.Status; a detail that would pass the size bound is left out."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        details = list(self.details)
        if self.retry_after is not None:
            delay = Duration()
            delay.FromMilliseconds(round(self.retry_after * 1000))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        size = status.ByteSize()
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            size += packed.ByteSize() + 4
            if size > MAX_STATUS_BYTES:
                break
            status.details.append(packed)
        return status

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Trailers for `context.abort`: the serialised status and the retry pushback in milliseconds."""
        # gRPC core 1.85 never goes on with a call whose server pushes back by 0 ms.
        pushback = "-1" if self.retry_after is None else str(max(1, round(self.retry_after * 1000)))
        return (STATUS_DETAILS_KEY, self.to_rpc_status().SerializeToString()), (PUSHBACK_KEY, pushback)


def error_info(reason: Reason, metadata: Mapping[str, str] | None = None) -> error_details_pb2.ErrorInfo:
    """An ErrorInfo of this service's domain; long metadata values are cut."""
    return error_details_pb2.ErrorInfo(
        reason=reason.value,
        domain=ERROR_DOMAIN,
        metadata={key: _cut(value, _MAX_VALUE) for key, value in (metadata or {}).items()},
    )


def bad_fields(violations: Sequence[tuple[str, str]]) -> StatusError:
    """INVALID_ARGUMENT for (field path, description) pairs, all at once."""
    listed = [(_cut(name, _MAX_FIELD), _cut(text, _MAX_DESCRIPTION)) for name, text in violations[:MAX_VIOLATIONS]]
    share = _MAX_DESCRIPTIONS // max(1, len(listed))
    request = _bad_request([(name, _cut(text, max(share - len(name.encode()), 24))) for name, text in listed])
    first = f"{listed[0][0]}: {listed[0][1]}" if listed else "the request is not valid"
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    info = error_info(Reason.INVALID_FIELD, {"violations": str(len(violations))})
    return StatusError(grpc.StatusCode.INVALID_ARGUMENT, _cut(first, 300) + more, (request, info))


def undecodable() -> StatusError:
    """INVALID_ARGUMENT: the bytes of a message are not the method's request."""
    return bad_fields([("request", "the bytes are not a message of this method, or hold text that is not UTF-8")])


def unimplemented(field: str) -> StatusError:
    """UNIMPLEMENTED for a field of the contract that does not work."""
    info = error_info(Reason.FIELD_NOT_SUPPORTED, {"field": field})
    return StatusError(grpc.StatusCode.UNIMPLEMENTED, f"{field} is not supported; leave it unset", (info,))


def out_of_range(field: str, description: str) -> StatusError:
    """OUT_OF_RANGE: prompt and output exceed the context, or could never fit the KV cache."""
    request = _bad_request([(field, description)])
    return StatusError(grpc.StatusCode.OUT_OF_RANGE, f"{field}: {description}", (request, error_info(Reason.TOO_LONG)))


def model_not_found(name: str, known: Sequence[str]) -> StatusError:
    """NOT_FOUND for a model that nobody serves."""
    served = ", ".join(known[:8]) if known else "none"
    text = f"no model is called {_cut(name, _MAX_FIELD)!r}; served: {served}"
    resource = error_details_pb2.ResourceInfo(
        resource_type="model", resource_name=_cut(name, _MAX_FIELD), description=_cut(text, _MAX_DESCRIPTION)
    )
    return StatusError(grpc.StatusCode.NOT_FOUND, text, (resource, error_info(Reason.MODEL_NOT_FOUND)))


def already_exists(request_id: str) -> StatusError:
    """ALREADY_EXISTS for a second live call with a caller's id."""
    text = f"a request with the id {_cut(request_id, 128)!r} is in progress"
    resource = error_details_pb2.ResourceInfo(
        resource_type="request", resource_name=_cut(request_id, 128), description=text
    )
    return StatusError(grpc.StatusCode.ALREADY_EXISTS, text, (resource, error_info(Reason.DUPLICATE_REQUEST_ID)))


def unauthenticated(message: str) -> StatusError:
    """UNAUTHENTICATED: the caller has no identity."""
    return StatusError(grpc.StatusCode.UNAUTHENTICATED, message, (error_info(Reason.UNAUTHENTICATED),))


def permission_denied(message: str) -> StatusError:
    """PERMISSION_DENIED: the caller may not do this."""
    return StatusError(grpc.StatusCode.PERMISSION_DENIED, message, (error_info(Reason.PERMISSION_DENIED),))


def quota_exceeded(subject: str, description: str, retry_after: float) -> StatusError:
    """RESOURCE_EXHAUSTED: a tenant's quota is used up."""
    failure = error_details_pb2.QuotaFailure()
    failure.violations.add(subject=_cut(subject, _MAX_FIELD), description=_cut(description, _MAX_DESCRIPTION))
    info = error_info(Reason.QUOTA_EXCEEDED)
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, description, (failure, info), retry_after)


def queue_full(retry_after: float, message: str) -> StatusError:
    """RESOURCE_EXHAUSTED: the pool and the queue are full, or waiting is hopeless."""
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, (error_info(Reason.QUEUE_FULL),), retry_after)


def replica_full(retry_after: float, message: str) -> StatusError:
    """RESOURCE_EXHAUSTED: the ledger of one replica has no room. Routers place the request elsewhere."""
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, (error_info(Reason.REPLICA_FULL),), retry_after)


def slow_reader(limit_bytes: int) -> StatusError:
    """RESOURCE_EXHAUSTED: the caller stopped reading while output piled up past `limit_bytes`."""
    text = f"more than {limit_bytes} bytes of output were left unread; the request was ended"
    return StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, (error_info(Reason.SLOW_READER),))


def no_replica(retry_after: float, message: str) -> StatusError:
    """UNAVAILABLE: no replica is ready."""
    return StatusError(grpc.StatusCode.UNAVAILABLE, message, (error_info(Reason.NO_REPLICA),), retry_after)


def draining(retry_after: float | None) -> StatusError:
    """UNAVAILABLE: the server takes no new requests, or closes what is left."""
    text = "the server is draining; send the request elsewhere"
    return StatusError(grpc.StatusCode.UNAVAILABLE, text, (error_info(Reason.DRAINING),), retry_after)


def wrong_epoch(expected: str, actual: str) -> StatusError:
    """UNAVAILABLE: the placement was made on an earlier process of this replica."""
    info = error_info(Reason.WRONG_EPOCH, {"expected": expected, "actual": actual})
    return StatusError(
        grpc.StatusCode.UNAVAILABLE, "the replica was restarted since the request was placed", (info,), 0.0
    )


def superseded(attempt: int) -> StatusError:
    """ABORTED: attempt `attempt` of the same call has taken over."""
    info = error_info(Reason.SUPERSEDED, {"attempt": str(attempt)})
    return StatusError(grpc.StatusCode.ABORTED, f"attempt {attempt} of this call has taken over", (info,))


def replica_lost(tokens_per_choice: Sequence[int], message: str) -> StatusError:
    """UNAVAILABLE: a replica died and the answer cannot go on; the counts say what was delivered of each choice.

    Without any delivered token the reason is REPLICA_LOST and a retry is safe.
    """
    counts = list(tokens_per_choice)[:128]
    if not any(counts):
        return StatusError(grpc.StatusCode.UNAVAILABLE, message, (error_info(Reason.REPLICA_LOST),), 0.0)
    info = error_info(Reason.PARTIAL_OUTPUT, {"tokens": ",".join(map(str, counts[:16]))})
    partial = internal_pb2.PartialOutput(tokens_per_choice=counts)
    return StatusError(grpc.StatusCode.UNAVAILABLE, message, (info, partial))


def deadline(stage: str) -> StatusError:
    """DEADLINE_EXCEEDED: the request's timeout passed while it was in `stage` (queue, prefill or decode)."""
    info = error_info(Reason.DEADLINE_EXCEEDED, {"stage": stage})
    return StatusError(grpc.StatusCode.DEADLINE_EXCEEDED, f"the timeout passed in stage {stage}", (info,))


def caller_left() -> StatusError:
    """CANCELLED: the caller has left. It hears nothing more; logs and metrics do."""
    return StatusError(grpc.StatusCode.CANCELLED, "the caller has left")


def internal(incident_id: str) -> StatusError:
    """INTERNAL: a fault of the service; the id finds its log line."""
    info = error_info(Reason.INTERNAL, {"incident": incident_id})
    text = f"internal error; the server's log has it under incident {incident_id}"
    return StatusError(grpc.StatusCode.INTERNAL, text, (info,))


def _bad_request(violations: Sequence[tuple[str, str]]) -> error_details_pb2.BadRequest:
    request = error_details_pb2.BadRequest()
    for name, description in violations:
        request.field_violations.add(field=_cut(name, _MAX_FIELD), description=_cut(description, _MAX_DESCRIPTION))
    return request


def _cut(text: str, limit: int) -> str:
    """Cuts to at most `limit` bytes of UTF-8, never inside a character."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "..."
