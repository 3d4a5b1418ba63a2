"""One uvloop event loop for each process, and the signals that end it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a new uvloop loop. Call it once a process, and never fork after gRPC has started.

    SIGTERM and SIGINT, where `main` has asked for them, do nothing any more once it has ended: the exit status is told.
    """
    return uvloop.run(_deaf_at_the_end(main))


def on_end_signals(callback: Callable[[signal.Signals], None]) -> None:
    """Has the running loop call `callback` at every SIGTERM and SIGINT.

    The handler is Python's own rather than the loop's: a loop gives its signals back to the system as it closes, and
    for that moment they would kill the process after its work is done.
    """
    handler = _InLoop(asyncio.get_running_loop(), callback)
    for number in END_SIGNALS:
        signal.signal(number, handler)


@dataclass(frozen=True)
class _InLoop:
    loop: asyncio.AbstractEventLoop
    callback: Callable[[signal.Signals], None]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.loop.call_soon_threadsafe(self.callback, signal.Signals(number))


async def _deaf_at_the_end(main: Coroutine[Any, Any, T]) -> T:
    try:
        return await main
    finally:
        for number in END_SIGNALS:
            if isinstance(signal.getsignal(number), _InLoop):
                signal.signal(number, signal.SIG_IGN)
