"""One uvloop event loop for each process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a new uvloop loop. Call it once a process, and never fork after gRPC has started.

    SIGTERM and SIGINT, where `main` has handled them, do nothing any more once it has ended: the exit status is told.
    """
    return uvloop.run(_deaf_at_the_end(main))


async def _deaf_at_the_end(main: Coroutine[Any, Any, T]) -> T:
    """A loop that closes gives signals back to the system, by which the process would die after its work is done."""
    try:
        return await main
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            if asyncio.get_running_loop().remove_signal_handler(number):
                signal.signal(number, signal.SIG_IGN)
