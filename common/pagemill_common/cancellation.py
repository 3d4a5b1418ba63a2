"""Telling a call that is being cancelled from a stray CancelledError."""

from __future__ import annotations

import asyncio


def being_cancelled() -> bool:
    """Somebody has cancelled the running task: gRPC for a caller that left, or the loop as it ends.

    False for a CancelledError that came from elsewhere, such as a future that was cancelled by itself: that is a fault
    like any other, and whoever waits for the call has to hear of it.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
