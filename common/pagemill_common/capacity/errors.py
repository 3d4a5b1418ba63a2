"""One error for every way in which Redis can be gone."""

from __future__ import annotations

from enum import StrEnum

from redis import exceptions as redis_errors


class UnavailableReason(StrEnum):
    """Why the pool could not answer; also a metric label."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    LOADING = "loading"
    READONLY = "readonly"
    CLUSTERDOWN = "clusterdown"
    BUSY = "busy"
    OOM = "oom"
    ACCESS = "access"
    """Password or permissions."""
    MOVED = "moved"
    """Another node of the cluster has the pool's keys."""
    OTHER = "other"


class CapacityUnavailable(Exception):  # noqa: N818 - a state of the pool, not a fault of the call
    """Redis gave no answer that can be used. Callers work in local mode; nobody gets an error because of it."""

    def __init__(self, reason: UnavailableReason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


_BY_TYPE: tuple[tuple[type[BaseException], UnavailableReason], ...] = (
    # More special types first.
    (redis_errors.BusyLoadingError, UnavailableReason.LOADING),
    (redis_errors.AuthenticationError, UnavailableReason.ACCESS),
    (redis_errors.AuthorizationError, UnavailableReason.ACCESS),
    (redis_errors.NoPermissionError, UnavailableReason.ACCESS),
    (redis_errors.ReadOnlyError, UnavailableReason.READONLY),
    (redis_errors.ClusterDownError, UnavailableReason.CLUSTERDOWN),
    (redis_errors.MovedError, UnavailableReason.MOVED),
    (redis_errors.OutOfMemoryError, UnavailableReason.OOM),
    (redis_errors.MaxConnectionsError, UnavailableReason.TIMEOUT),
    (redis_errors.TimeoutError, UnavailableReason.TIMEOUT),
    (redis_errors.ConnectionError, UnavailableReason.CONNECTION),
    (TimeoutError, UnavailableReason.TIMEOUT),
    (OSError, UnavailableReason.CONNECTION),
)

_BY_WORD: tuple[tuple[str, UnavailableReason], ...] = (
    # Errors from inside a script come as plain response errors whose text begins with, or quotes, the code.
    ("LOADING", UnavailableReason.LOADING),
    ("READONLY", UnavailableReason.READONLY),
    ("NOREPLICAS", UnavailableReason.READONLY),
    ("CLUSTERDOWN", UnavailableReason.CLUSTERDOWN),
    ("MASTERDOWN", UnavailableReason.CLUSTERDOWN),
    ("BUSY", UnavailableReason.BUSY),
    ("OOM", UnavailableReason.OOM),
    ("MOVED", UnavailableReason.MOVED),
    ("NOAUTH", UnavailableReason.ACCESS),
    ("NOPERM", UnavailableReason.ACCESS),
    ("MISCONF", UnavailableReason.READONLY),
)


def reason_of(error: BaseException) -> UnavailableReason:
    """Which of the reasons an exception of redis-py, asyncio or the operating system stands for."""
    for kind, reason in _BY_TYPE:
        if isinstance(error, kind):
            return reason
    text = str(error)
    for word, reason in _BY_WORD:
        if word in text:
            return reason
    return UnavailableReason.OTHER


def unavailable(error: BaseException) -> CapacityUnavailable:
    """The one error for `error`."""
    return CapacityUnavailable(reason_of(error), str(error) or type(error).__name__)
