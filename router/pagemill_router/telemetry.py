"""The router's instruments and spans. Labels are bounded: model, code, reason, mode, policy, outcome; never an id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer
from opentelemetry.util.types import AttributeValue

from pagemill_common.telemetry import Telemetry, names

POLICY_TIME = "pagemill.router.policy.time"
REFUSALS = "pagemill.router.refusals"


class RouterTelemetry:
    """What the router measures."""

    def __init__(self, telemetry: Telemetry) -> None:
        meters = telemetry.meters
        self.tracer: Tracer = telemetry.tracer
        self._meters = meters
        self._requests = meters.counter(names.REQUESTS, "Finished calls by model, method and status code.")
        self._refusals = meters.counter(REFUSALS, "Calls that ended in an error, by reason.")
        self._duration = meters.histogram(names.REQUEST_DURATION, "From arrival to the last message.")
        self._first_token = meters.histogram(names.TIME_TO_FIRST_TOKEN, "From arrival to the first token.")
        self._inter_token = meters.fast_histogram(
            names.INTER_TOKEN_LATENCY, "Between tokens, as they pass the router.", "model"
        )
        self._queue_time = meters.histogram(names.QUEUE_TIME, "Waiting for room before a replica was found.")
        self._reserve_time = meters.histogram(names.ROUTER_RESERVE_TIME, "One question for room, by mode.")
        self._reserves = meters.counter(names.ROUTER_RESERVES, "Questions for room, by mode and outcome.")
        self._attempts = meters.counter(names.ROUTER_ATTEMPTS, "Attempts on replicas, by outcome.")
        self._redis_errors = meters.counter(names.ROUTER_REDIS_ERRORS, "Failures of Redis, by reason.")
        self._policy_time = meters.histogram(POLICY_TIME, "Time in which the policy ranked the replicas.")

    def watch(
        self,
        *,
        queued: Callable[[], float],
        streams: Callable[[], float],
        replicas: Callable[[], Mapping[str, float]],
        modes: Callable[[], Mapping[str, float]],
    ) -> None:
        """Gauges, read from the Prometheus thread: each reader returns plain numbers and takes no lock."""
        self._meters.gauge(names.ROUTER_QUEUED, "Calls that wait for room.", queued)
        self._meters.gauge(names.ROUTER_STREAMS, "Calls in progress.", streams)
        self._meters.gauge(names.ROUTER_REPLICAS, "Replicas by standing.", replicas, label="standing")
        self._meters.gauge(
            names.ROUTER_ADMISSION_MODE, "1 for the admission mode in force: redis or local.", modes, label="mode"
        )

    def finished(self, model: str, method: str, code: str, reason: str, seconds: float) -> None:
        """A call has ended."""
        labels = {"model": model, "method": method, "code": code}
        self._requests.add(1, labels)
        self._duration.record(seconds, labels)
        if reason:
            self._refusals.add(1, {"model": model, "reason": reason})

    def first_token(self, model: str, seconds: float) -> None:
        """The first token has passed."""
        self._first_token.record(seconds, {"model": model})

    def tokens(self, model: str, seconds: float, count: int) -> None:
        """`count` tokens passed together, so long after the ones before."""
        self._inter_token.record(seconds / count, model, count)

    def waited(self, model: str, seconds: float) -> None:
        """A call has left the waiting room."""
        self._queue_time.record(seconds, {"model": model})

    def reserved(self, mode: str, outcome: str, seconds: float) -> None:
        """Admission has answered."""
        self._reserves.add(1, {"mode": mode, "outcome": outcome})
        self._reserve_time.record(seconds, {"mode": mode})

    def attempted(self, outcome: str) -> None:
        """An attempt has ended."""
        self._attempts.add(1, {"outcome": outcome})

    def redis_failed(self, reason: str) -> None:
        """Redis gave no answer, or one that cannot be trusted."""
        self._redis_errors.add(1, {"reason": reason})

    def decided(self, policy: str, seconds: float) -> None:
        """The policy has ranked."""
        self._policy_time.record(seconds, {"policy": policy})

    @contextmanager
    def span(
        self, name: str, attributes: Mapping[str, AttributeValue] | None = None, context: Context | None = None
    ) -> Iterator[Span]:
        """A current span; an error is recorded on it, a cancellation is not one."""
        with self.tracer.start_as_current_span(name, context=context, attributes=attributes) as span:
            yield span
