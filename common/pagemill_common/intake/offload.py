"""CPU work off the event loop: never so much long work at once that short work finds no thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

__all__ = ["LONG_BYTES", "Offload"]

LONG_BYTES = 65_536
"""Work on a request of this size or more is long."""

T = TypeVar("T")


class Offload:
    """Runs work in an executor's threads for one event loop.

    A thread cannot be interrupted: work whose caller has gone counts until it ends, so that callers who come and go
    hold no more threads than those who stay.
    """

    def __init__(self, executor: Executor, threads: int) -> None:
        """`threads` are the executor's; long work takes half of them, at least one."""
        self._executor = executor
        self._long = asyncio.Semaphore(max(1, threads // 2))
        self._pending = 0

    @property
    def pending(self) -> int:
        """Pieces of work that wait or run."""
        return self._pending

    async def run(self, work: Callable[[], T], *, long: bool = False) -> T:
        """The result of `work`. `long` work waits for its turn, in order."""
        self._pending += 1
        try:
            if long:
                await self._long.acquire()
            future = self._start(work, long)
        except BaseException:
            self._pending -= 1
            raise
        return await asyncio.wrap_future(future)

    def _start(self, work: Callable[[], T], long: bool) -> Future[T]:
        try:
            future = self._executor.submit(work)
        except BaseException:
            if long:
                self._long.release()
            raise
        loop = asyncio.get_running_loop()

        def ended(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(self._end, long)

        future.add_done_callback(ended)
        return future

    def _end(self, long: bool) -> None:
        self._pending -= 1
        if long:
            self._long.release()
