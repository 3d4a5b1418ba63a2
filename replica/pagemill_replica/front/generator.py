"""One Generate call on a replica, from its arrival to its last message.

Nothing is sent before the ledger has accepted, so a refusal is a bare status that a router may retry elsewhere.
Whatever ends the call (its end, an error, a cancel, a lost connection) leaves through the same `finally`: the engine is
told, the name is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from opentelemetry.trace import SpanKind, Tracer

from pagemill.v1 import generation_pb2
from pagemill_common.cancellation import being_cancelled
from pagemill_common.telemetry import names
from pagemill_replica.engine.messages import Timing
from pagemill_replica.front import frames
from pagemill_replica.front.admission import Accepted, Admission
from pagemill_replica.front.arrival import Arrival
from pagemill_replica.front.live import Finish, LiveRequest
from pagemill_replica.front.metrics import ReplicaMetrics
from pagemill_replica.front.record import RequestRecord

WATCHDOG_SLACK_SECONDS = 0.05
"""How long after a request's time the front leaves it to the engine to end it.

The engine ends requests between steps, so in a long step it is the front that keeps the time, well before the caller's
own deadline, 250 ms later, hides the details.
"""
END_WAIT_SECONDS = 0.25
"""How long the last message waits for the engine's timing after a stop string."""

Response = generation_pb2.GenerateResponse
Write = Callable[[Response], Awaitable[object]]
"""Hands a message to the caller, and returns when there is room for the next."""


class Generator:
    """Runs Generate calls. `active` counts those that have not left."""

    def __init__(
        self,
        admission: Admission,
        metrics: ReplicaMetrics,
        tracer: Tracer,
        *,
        replica: str,
        clock: Callable[[], float],
    ) -> None:
        self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._admission = admission
        self._metrics = metrics
        self._tracer = tracer
        self._replica = replica
        self._clock = clock

    async def run(self, request: generation_pb2.GenerateRequest, arrived: Arrival, write: Write) -> None:
        """Runs a call whose messages `write` takes in order. Raises StatusError; anything else is a bug."""
        record = RequestRecord(self._tracer.start_span(names.SPAN_REPLICA, arrived.trace, SpanKind.SERVER), arrived.at)
        accepted: Accepted | None = None
        self.active += 1
        self._idle.clear()
        try:
            accepted = await self._admission.accept(request, arrived, record)
            with self._watchdog(accepted):
                async with contextlib.aclosing(self._messages(accepted, record)) as messages:
                    async for message in messages:
                        await accepted.live.output.deliver(write, message)
        except asyncio.CancelledError as stray:
            # As the interceptor takes it, which then answers INTERNAL.
            if not being_cancelled():
                record.failed(stray)
            raise
        except Exception as failure:
            record.failed(failure)
            raise
        finally:
            self._left()
            if accepted is not None:
                self._admission.leave(accepted)
                self._note(accepted.live, record)
            record.close(self._clock())
            self._metrics.finished(record)

    async def wait_idle(self) -> None:
        """Returns when no call is left."""
        await self._idle.wait()

    def _left(self) -> None:
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def _messages(self, accepted: Accepted, record: RequestRecord) -> AsyncGenerator[Response, None]:
        live, last_at, begun = accepted.live, 0.0, False
        while (piece := await live.output.take()) is not None:
            if not begun:
                begun = True
                yield self._started(accepted)
            if piece.token_ids:
                now = self._clock()
                if last_at:
                    self._metrics.tokens(accepted.model, now - last_at, len(piece.token_ids))
                last_at = now
            delta = frames.delta(piece, with_ids=accepted.with_ids)
            if delta is not None:
                yield delta
        if not begun:
            yield self._started(accepted)
        assert live.finish is not None, "output is complete only where there is a finish"
        timing = await self._timing(live, record)
        record.finished(generation_pb2.FinishReason.Name(live.finish.reason).removeprefix("FINISH_REASON_").lower())
        yield self._finished(accepted, live.finish, timing)

    def _started(self, accepted: Accepted) -> Response:
        return frames.started(
            request_id=accepted.live.name.request_id,
            model=accepted.model,
            replica=self._replica,
            prompt_tokens=accepted.prompt_tokens,
            cached_tokens=accepted.cached_tokens,
            seed=accepted.seed,
        )

    def _finished(self, accepted: Accepted, finish: Finish, timing: Timing) -> Response:
        usage = generation_pb2.Usage(
            prompt_tokens=accepted.prompt_tokens,
            cached_tokens=accepted.cached_tokens,
            completion_tokens=accepted.live.completion_tokens,
        )
        return frames.finished(finish, usage, timing)

    async def _timing(self, live: LiveRequest, record: RequestRecord) -> Timing:
        """The engine's figures; after a stop string they are a step away, and the front's own serve if that is long."""
        if live.ended is None and not live.gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_WAIT_SECONDS):
                    await live.gone.wait()
        if live.ended is not None:
            return live.ended.timing
        first, last = live.first_token_at, live.last_token_at
        if first is None or last is None:
            return Timing()
        return Timing(prefill=first - record.arrived, decode=last - first)

    @contextlib.contextmanager
    def _watchdog(self, accepted: Accepted) -> Iterator[None]:
        """Ends the stream at its time also where the engine is stuck, or the caller does not read."""
        delay = accepted.deadline - self._clock() + WATCHDOG_SLACK_SECONDS
        timer = asyncio.get_running_loop().call_later(max(0.0, delay), accepted.live.expire)
        try:
            yield
        finally:
            timer.cancel()

    def _note(self, live: LiveRequest, record: RequestRecord) -> None:
        record.cached_tokens = live.cached_tokens
        record.completion_tokens = live.completion_tokens
        record.queue = live.queued
        if live.ended is not None:
            record.preemptions = live.ended.preemptions
        first, last = live.first_token_at, live.last_token_at
        if first is not None and last is not None:
            record.ttft = first - record.arrived
            generated = live.completion_tokens - live.replayed_tokens
            if generated > 1:
                record.itl = (last - first) / (generated - 1)
