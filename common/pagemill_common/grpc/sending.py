"""Writing to a caller who may leave at any moment."""

from __future__ import annotations

from typing import Any

import grpc

from pagemill_common import errors

Context = grpc.aio.ServicerContext[Any, Any]


async def send(context: Context, message: object) -> None:
    """Writes a message of a stream; returns when the transport has taken it.

    A write that waits for the caller to read fails when the call ends meanwhile: StatusError CANCELLED, or
    DEADLINE_EXCEEDED where it was the time that ended it.
    """
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise _ended(context) from None


def _ended(context: Context) -> errors.StatusError:
    """The status of a call that was over before the server was done with it."""
    left = context.time_remaining()
    return errors.deadline("decode") if left is not None and left <= 0 else errors.caller_left()
