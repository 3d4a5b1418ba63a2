"""What can go wrong with a call, as typed exceptions.

Every exception carries the gRPC status code, the reason and the details that the server sent; `retry_after` is the
number of seconds after which another try makes sense, or None where the server gave none.
"""

# Named for the situation, as callers write `except QueueFull`.
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import grpc
from google.protobuf.message import Message


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong, and why."""

    field: str
    """Dotted path in the request, such as `sampling.temperature`."""
    description: str


class PagemillError(Exception):
    """The base of all errors of this library; raised itself for statuses that have no class of their own."""

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str | None = None,
        retry_after: float | None = None,
        details: Sequence[Message] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """One line for people."""
        self.code = code if code is not None else self.default_code
        """The gRPC status code."""
        self.reason = reason
        """Machine-readable reason, a value of `pagemill.reasons.Reason`, or None."""
        self.retry_after = retry_after
        """Seconds after which another try makes sense; None where the server does not say."""
        self.details = tuple(details)
        """The status details as sent: messages of google.rpc and of pagemill.v1."""
        self.metadata = dict(metadata or {})
        """Further facts beside the reason."""


class InvalidRequest(PagemillError):
    """Fields of the request are wrong. `violations` names every one of them."""

    default_code = grpc.StatusCode.INVALID_ARGUMENT
    violations: tuple[Violation, ...] = ()


class TooLong(InvalidRequest):
    """Prompt and output together exceed the model's context, or could never fit a replica's cache."""

    default_code = grpc.StatusCode.OUT_OF_RANGE


class NotFound(PagemillError):
    """Nothing has that name."""

    default_code = grpc.StatusCode.NOT_FOUND
    resource: str = ""
    """The name asked for."""


class ModelNotFound(NotFound):
    """No ready replica serves a model or adapter of that name."""


class AlreadyExists(PagemillError):
    """A live request on the same router has the same request id."""

    default_code = grpc.StatusCode.ALREADY_EXISTS
    request_id: str = ""


class Unauthenticated(PagemillError):
    """The caller has not said who it is."""

    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(PagemillError):
    """The caller may not do this."""

    default_code = grpc.StatusCode.PERMISSION_DENIED


class Exhausted(PagemillError):
    """There is no room for this request at the moment."""

    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class QueueFull(Exhausted):
    """All replicas are full, and so is the queue, or waiting is hopeless."""


class QuotaExceeded(Exhausted):
    """The tenant's quota is used up. `violations` says which; their `field` is the subject."""

    violations: tuple[Violation, ...] = ()


class Unavailable(PagemillError):
    """No ready replica, a server that drains, or no server at the target."""

    default_code = grpc.StatusCode.UNAVAILABLE


class NotReady(Unavailable):
    """A server is there, and its health check says that it is not ready; nothing was sent to it."""


class ReplicaLost(Unavailable):
    """The replica failed and no other could go on. Nothing was delivered where `tokens_per_choice` is empty."""

    tokens_per_choice: tuple[int, ...] = ()
    """Tokens delivered before the failure, one count for each choice."""


class DeadlineExceeded(PagemillError):
    """The timeout passed."""

    default_code = grpc.StatusCode.DEADLINE_EXCEEDED
    stage: str | None = None
    """Where the request was: `queue`, `prefill` or `decode`; None where the server did not say."""


class NotSupported(PagemillError):
    """The server does not implement something the request uses."""

    default_code = grpc.StatusCode.UNIMPLEMENTED
    field: str | None = None
    """The field of the request; None where the whole method is unknown."""


class Cancelled(PagemillError):
    """Something other than this caller's own `cancel()` cancelled the call."""

    default_code = grpc.StatusCode.CANCELLED


class InternalError(PagemillError):
    """A bug on the server."""

    default_code = grpc.StatusCode.INTERNAL
    incident: str | None = None
    """What to look for in the server's log."""
