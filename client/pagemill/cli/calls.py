"""Calls from a command, on an event loop of its own.

There, Ctrl-C cancels the task that waits. In a blocking call it would be an exception raised at whatever line runs,
and gRPC's own waiting code does not survive one inside its lock; nor does an event loop survive one between its steps,
which is what asyncio's own runner raises at a second Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from pagemill.aio import AsyncClient

_Found = TypeVar("_Found")
_Ask = Callable[[AsyncClient], Coroutine[Any, Any, _Found]]


class Connection:
    """A client, and the event loop that it lives on, for commands that call more than once."""

    def __init__(self, target: str | None) -> None:
        self._runner = asyncio.Runner()
        try:
            self._client = self._runner.run(_connect(target))
        except BaseException:
            self._runner.close()
            raise

    @property
    def target(self) -> str:
        """The gRPC target in use."""
        return self._client.target

    def ask(self, ask: _Ask[_Found]) -> _Found:
        """Runs `ask` with the client to its end. Raises PagemillError; on Ctrl-C cancels it, then KeyboardInterrupt."""
        return self._run(ask(self._client))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._run(self._client.close())
        finally:
            self._runner.close()

    def _run(self, coroutine: Coroutine[Any, Any, _Found]) -> _Found:
        loop = self._runner.get_loop()
        task = loop.create_task(coroutine)
        interrupted = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            interrupted = True
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # The loop may be asleep.

        before = signal.getsignal(signal.SIGINT)
        if callable(before):  # Ignored, in a script's background, it stays so.
            signal.signal(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, before)


def call(target: str | None, ask: _Ask[_Found]) -> _Found:
    """One call: connects, asks, closes."""
    with Connection(target) as connection:
        return connection.ask(ask)


async def _connect(target: str | None) -> AsyncClient:
    return AsyncClient(target)
