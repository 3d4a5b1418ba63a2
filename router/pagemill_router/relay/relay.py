"""The relay: places a call, forwards the replica's frames and owns what can go wrong on the way.

    place --> send --> wait for the first frame --> stream --> end
      ^                      |                        |
      |    nothing delivered |       something delivered: the status tells what
      +----------------------+

Until the caller has got a frame an attempt may fail and another begin on another replica. The state that decides is
`Delivered`; continuing after a frame is a matter of sending what it holds to another replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.util.types import AttributeValue

from pagemill.v1 import internal_pb2
from pagemill_common import errors, logs
from pagemill_common.telemetry import names
from pagemill_router.admission.admission import Admission
from pagemill_router.placement.job import Job
from pagemill_router.placement.placer import Placed, Placer
from pagemill_router.placement.undelivered import suspected, undelivered
from pagemill_router.relay.delivered import BrokenStreamError, Delivered
from pagemill_router.relay.failure import Failure, Verdict, broken
from pagemill_router.relay.sink import Sink
from pagemill_router.relay.upstream import AttemptFailedError, Upstream, open_upstream
from pagemill_router.telemetry import RouterTelemetry

_log = logs.get("pagemill.router.relay")

STATUS_SLACK = 0.1
"""Seconds past the deadline for a replica's own DEADLINE_EXCEEDED to arrive, which knows the stage better. Our client
gives up 0.25 s past it."""
MAX_LOST = 2
"""Replicas that may be lost under one call. A prompt that kills its engine must not go from replica to replica until
none is left; two at once by chance are rarer."""
TRANSPORT_SLACK = 1.0
"""Seconds past that for gRPC's own deadline, a last resort."""


@dataclass(slots=True)
class Outcome:
    """What became of a call, for its log line."""

    replica: str = ""
    attempts: int = 0
    mode: str = ""
    first_frame_at: float | None = None
    delivered: Delivered = field(default_factory=Delivered)


class Relay:
    """Runs calls. One for the process; all state of a call is on its own task's stack."""

    def __init__(
        self,
        placer: Placer,
        admission: Admission,
        telemetry: RouterTelemetry,
        *,
        router: str,
        clock: Callable[[], float],
        max_attempts: int = 3,
    ) -> None:
        self._placer = placer
        self._admission = admission
        self._telemetry = telemetry
        self._router = router
        self._clock = clock
        self._max_attempts = max_attempts

    async def run(self, job: Job, sink: Sink, outcome: Outcome) -> None:
        """Delivers the whole answer or raises the StatusError that the caller gets. Cancelling it ends everything."""
        timer = asyncio.timeout_at(self._loop_time(job.deadline))
        try:
            async with timer:
                await self._attempts(job, sink, outcome, timer)
        except TimeoutError:
            if not timer.expired():
                raise
            raise errors.deadline(job.stage) from None

    async def _attempts(self, job: Job, sink: Sink, outcome: Outcome, timer: asyncio.Timeout) -> None:
        outcome.delivered = Delivered(job.choices, with_token_ids=job.with_token_ids)
        excluded: frozenset[str] = frozenset()
        avoid: frozenset[str] = frozenset()
        failures = lost = 0
        while True:
            timer.reschedule(self._loop_time(job.deadline))
            placed = await self._placer.place(job, excluded, avoid)
            timer.reschedule(self._loop_time(job.deadline + STATUS_SLACK))
            outcome.attempts += 1
            failure = await self._attempt(job, placed, sink, outcome)
            if failure is None:
                return
            verdict = failure.verdict
            self._telemetry.attempted(verdict.value)
            key = placed.link.key
            if verdict is Verdict.PASS:
                raise failure.passed_on()
            if outcome.delivered.committed and not self._restart(sink, outcome, job):
                counts = outcome.delivered.tokens_per_choice
                raise errors.replica_lost(counts, f"the replica was lost: {failure.message}")
            job.stage = "queue"
            if verdict is Verdict.FULL:
                avoid = frozenset({placed.grant.candidate.replica.key})
                continue
            failures += 1
            lost += failure.lost
            job.last_failure_at = self._clock()
            _log.warning(
                "attempt failed",
                request_id=job.request_id,
                replica=placed.grant.candidate.replica.name,
                attempt=outcome.attempts,
                code=failure.code.name,
                reason=failure.reason or failure.message[:200],
            )
            if lost >= MAX_LOST:
                raise suspected(f"{lost} replicas were lost under this call, which goes to no other: {failure.message}")
            if failures >= self._max_attempts:
                raise undelivered(f"{failures} attempts failed, the last with: {failure.message}")
            excluded |= {placed.grant.candidate.replica.key, key}
            avoid = frozenset()

    def _restart(self, sink: Sink, outcome: Outcome, job: Job) -> bool:
        """Begins from scratch where the sink has kept everything from the caller."""
        if not sink.restart():
            return False
        outcome.delivered = Delivered(job.choices, with_token_ids=job.with_token_ids)
        return True

    async def _attempt(self, job: Job, placed: Placed, sink: Sink, outcome: Outcome) -> Failure | None:
        """One attempt on one replica; how it failed, or None."""
        grant, link = placed.grant, placed.link
        view = grant.candidate.replica
        outcome.replica, outcome.mode = view.name, grant.mode.value
        answered = False
        attributes: dict[str, AttributeValue] = {
            names.ATTR_REPLICA: view.name,
            names.ATTR_ATTEMPT: outcome.attempts,
            names.ATTR_ADMISSION_MODE: grant.mode.value,
        }
        with self._telemetry.span(f"{names.SPAN_ROUTER_ATTEMPT} {outcome.attempts}", attributes) as span:
            try:
                job.stage = "prefill"
                outcome.delivered.begin_attempt()
                left = max(0.001, job.deadline - self._clock())
                request = job.forward(self._placement(job, placed, outcome.attempts), left)
                async with open_upstream(link, request, left + STATUS_SLACK + TRANSPORT_SLACK) as upstream:
                    frame = await upstream.first()
                    answered = frame is not None
                    await self._stream(job, placed, upstream, frame, sink, outcome)
            except AttemptFailedError as failed:
                if outcome.delivered.complete:
                    # The whole answer is out: how the stream was torn down after it is no matter of the caller's.
                    self._telemetry.attempted("ok")
                    return None
                span.set_attribute(names.ATTR_OUTCOME, failed.failure.verdict.value)
                return failed.failure
            except BrokenStreamError as error:
                _log.error("replica broke its stream", request_id=job.request_id, replica=view.name, what=str(error))
                return broken(str(error))
            finally:
                # Until a frame has come the replica may not have seen the reservation.
                (self._admission.settle if answered else self._admission.release)(grant)
                self._placer.room.news(job.model)
        self._telemetry.attempted("ok")
        return None

    async def _stream(
        self, job: Job, placed: Placed, upstream: Upstream, frame: bytes | None, sink: Sink, outcome: Outcome
    ) -> None:
        """Forwards frame by frame: one is read when the one before has been taken."""
        held = placed.link.held
        hashes = job.hashes
        holding = False
        last_at = self._clock()
        delivered = outcome.delivered
        try:
            while frame is not None:
                before = delivered.tokens
                for out in delivered.accept(frame):
                    await sink.write(out)
                if delivered.committed and not holding:
                    # The prompt is computed: its blocks are held there as long as we stream.
                    held.hold(hashes)
                    holding = True
                    job.stage = "decode"
                    self._admission.settle(placed.grant)
                last_at = self._measure(job, outcome, delivered.tokens - before, last_at)
                frame = await upstream.read()
        finally:
            if holding:
                held.drop(hashes)
        if not delivered.complete:
            raise BrokenStreamError("the stream ended before its end")

    def _measure(self, job: Job, outcome: Outcome, tokens: int, last_at: float) -> float:
        """Records the time to the first token or between tokens; the time to measure the next ones from."""
        if tokens <= 0:
            return last_at
        at = self._clock()
        if outcome.first_frame_at is None:
            outcome.first_frame_at = at
            self._telemetry.first_token(job.model, at - job.arrived)
        else:
            self._telemetry.tokens(job.model, at - last_at, tokens)
        return at

    def _placement(self, job: Job, placed: Placed, attempt: int) -> internal_pb2.Placement:
        view = placed.grant.candidate.replica
        return internal_pb2.Placement(
            call_id=job.call_id,
            attempt=attempt,
            reservation_id=placed.grant.reservation_id,
            epoch=view.epoch,
            need_blocks=placed.grant.candidate.need,
            router=self._router,
        )

    def _loop_time(self, at: float) -> float:
        """A time of our clock on the loop's."""
        return asyncio.get_running_loop().time() + at - self._clock()
