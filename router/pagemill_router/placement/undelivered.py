"""The end of a call that nobody could answer."""

from __future__ import annotations

from pagemill_common.errors import StatusError, replica_lost

RETRY_SECONDS = 0.1


def undelivered(message: str) -> StatusError:
    """Every attempt failed and the caller has got nothing: UNAVAILABLE, safe to send again."""
    error = replica_lost([], message)
    # Never 0: gRPC clients with a retry policy hang on a pushback of 0 ms.
    error.retry_after = RETRY_SECONDS
    return error


def suspected(message: str) -> StatusError:
    """Replicas died under the call: UNAVAILABLE, and neither gRPC nor our client may send it again by itself."""
    error = replica_lost([], message)
    error.retry_after = None
    return error
