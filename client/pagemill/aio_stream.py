"""The answer as it comes: an asynchronous iterator of chunks over an asyncio call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from pagemill.answer import Chunk
from pagemill.errors import PagemillError
from pagemill.status import error_from_status
from pagemill.stream import AnswerView
from pagemill.tracing import CallSpan
from pagemill.unanswered import explained
from pagemill.v1 import generation_pb2


class AsyncGenerateStream(AnswerView, AsyncIterator[Chunk]):
    """An answer under way: iterate over its chunks, once, from one task.

    Leaving an `async with` block, `aclose()`, dropping the stream, or cancelling the task that waits for a chunk
    cancels the call on the server. After `cancel()` the iteration ends without an error.
    """

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[generation_pb2.GenerateRequest, generation_pb2.GenerateResponse],
        span: CallSpan,
        target: str,
    ) -> None:
        super().__init__(span)
        self._call = call
        self._messages = call.__aiter__()
        self._target = target

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk. Raises PagemillError for whatever status ends the stream."""
        while not self._done:
            try:
                message = await anext(self._messages)
            except StopAsyncIteration:
                self._end_well()
                break
            except grpc.aio.AioRpcError as error:
                if self._cancelled:
                    self._end()
                    break
                known = error_from_aio(error, self._target)
                self._end(known)
                raise known from None
            except asyncio.CancelledError:
                # gRPC raises this for its own cancelled calls too; a cancelled task must stay cancelled.
                if self._cancelled and not _task_is_cancelling():
                    self._end()
                    break
                self.cancel()
                self._end()
                raise
            chunk = self._take(message)
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Cancels the answer; what has arrived stays readable here. Does nothing once it has ended."""
        if not self._done:
            self._cancelled = True
            self._call.cancel()

    async def aclose(self) -> None:
        """Cancels the answer unless it has ended, and ends the iteration."""
        if not self._done:
            self.cancel()
            self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A dropped stream must not leave the server working; the event loop may be gone by then.
        with contextlib.suppress(Exception):
            if not self._done:
                self.cancel()
                self._end()


def error_from_aio(error: grpc.aio.AioRpcError, target: str, *, only_routers: bool = False) -> PagemillError:
    """The exception for what an asyncio call raised; `only_routers` as for `explained`."""
    trailers = [(str(key), value) for key, value in error.trailing_metadata() or ()]
    known = error_from_status(error.code(), error.details() or "", trailers)
    return explained(known, target, only_routers=only_routers)


def _task_is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
