"""The answer as it comes: an iterator of chunks over a blocking call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

import grpc

from pagemill.answer import AnswerState, Choice, Chunk, Finished, Started, Usage, total_usage
from pagemill.errors import InternalError, PagemillError
from pagemill.status import error_from_status
from pagemill.tracing import CallSpan
from pagemill.unanswered import explained
from pagemill.v1 import generation_pb2 as pb


class StreamCall(Protocol):
    """What this needs of a gRPC streaming call."""

    def __next__(self) -> pb.GenerateResponse:
        """The next message."""
        ...

    def cancel(self) -> bool:
        """Ends the call."""
        ...


class AnswerView:
    """What is known of an answer so far; shared by the blocking and the asyncio stream."""

    def __init__(self, span: CallSpan) -> None:
        self._state = AnswerState()
        self._span = span
        self._cancelled = False
        self._done = False

    @property
    def started(self) -> Started | None:
        """What the server said first: model, replica, prompt tokens, seed. None before the first chunk."""
        return self._state.started

    @property
    def finished(self) -> Finished | None:
        """How the first choice ended. None until the stream has ended well."""
        return self._state.finished

    @property
    def usage(self) -> Usage:
        """Token counts; zeros until a choice has ended."""
        return total_usage(self._state.choices)

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        return self._state.choice(0).text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the first choice so far."""
        return self._state.choice(0).token_ids

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All choices so far, by index."""
        return self._state.choices

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas that answered, in order; more than one after a failover."""
        return tuple(self._state.replicas)

    @property
    def cancelled(self) -> bool:
        """The caller cancelled the answer before its end."""
        return self._cancelled

    def _take(self, message: pb.GenerateResponse) -> Chunk | None:
        is_first = self._state.started is None
        chunk = self._state.apply(message)
        if is_first and self._state.started is not None:
            self._span.first_chunk()
        return chunk

    def _end(self, error: PagemillError | None = None) -> None:
        self._done = True
        self._span.end(
            started=self.started, finished=self.finished, usage=self.usage, error=error, cancelled=self._cancelled
        )

    def _end_well(self) -> None:
        """The status was OK: the answer must be whole."""
        if self._state.complete or self._cancelled:
            self._end()
            return
        error = InternalError("the stream ended without saying how the answer ended")
        self._end(error)
        raise error


class GenerateStream(AnswerView, Iterator[Chunk]):
    """An answer under way: iterate over its chunks, once, from one thread.

    Leaving a `with` block, `close()`, or dropping the stream cancels the call on the server. `cancel()` may come
    from any thread; the iteration then ends without an error.
    """

    def __init__(self, call: StreamCall, span: CallSpan, target: str) -> None:
        super().__init__(span)
        self._call = call
        self._target = target

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """The next chunk. Raises PagemillError for whatever status ends the stream."""
        while not self._done:
            try:
                message = next(self._call)
            except StopIteration:
                self._end_well()
                break
            except grpc.RpcError as error:
                if self._cancelled:
                    self._end()
                    break
                known = error_from_call(error, self._target)
                self._end(known)
                raise known from None
            chunk = self._take(message)
            if chunk is not None:
                return chunk
        raise StopIteration

    def cancel(self) -> None:
        """Cancels the answer; what has arrived stays readable here. Does nothing once it has ended."""
        if not self._done:
            self._cancelled = True
            self._call.cancel()

    def close(self) -> None:
        """Cancels the answer unless it has ended, and ends the iteration."""
        if not self._done:
            self.cancel()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # `for chunk in client.generate(...): break` drops the stream: the server must not work on.
        with contextlib.suppress(Exception):
            self.close()


def error_from_call(error: grpc.RpcError, target: str, *, only_routers: bool = False) -> PagemillError:
    """The exception for what a blocking call raised; `only_routers` as for `explained`."""
    if not isinstance(error, grpc.Call):
        return PagemillError(str(error))
    trailers = [(key, value) for key, value in (error.trailing_metadata() or ())]
    known = error_from_status(error.code(), error.details() or "", trailers)
    return explained(known, target, only_routers=only_routers)
