"""The engine's spans: where a request waited, its prefill, its decode.

They are made when a request has ended, from the durations it reports, so that a step does nothing for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.trace import SpanKind, Status, StatusCode

from pagemill_common.telemetry import Telemetry, context_from_traceparent, names
from pagemill_replica.engine.messages import Ended, EndReason, StepReport, Submit

_FAILURES = frozenset({EndReason.TIMEOUT, EndReason.REJECTED, EndReason.FAILED})


class EngineSpans:
    """Remembers the trace context of live requests. Does nothing where no spans leave the process."""

    def __init__(self, telemetry: Telemetry, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._tracer = telemetry.tracer
        self._exporting = telemetry.exporting
        self._wall_clock_ns = wall_clock_ns
        self._parents: dict[int, tuple[str, int]] = {}
        self._progress: dict[int, tuple[int, int]] = {}

    def submitted(self, request: Submit) -> None:
        """Remembers a request that carries a trace context."""
        if self._exporting and request.traceparent:
            self._parents[request.key] = (request.traceparent, len(request.prompt_ids))

    def ended(self, report: StepReport) -> None:
        """Emits the spans of the requests that ended in a step."""
        if not self._parents:
            return
        for tokens in report.tokens:
            if tokens.key in self._parents:
                count, _ = self._progress.get(tokens.key, (0, 0))
                self._progress[tokens.key] = (count + len(tokens.token_ids), tokens.cached_tokens)
        now = self._wall_clock_ns()
        for ended in report.ended:
            parent = self._parents.pop(ended.key, None)
            progress = self._progress.pop(ended.key, (0, 0))
            if parent is not None:
                self._emit(ended, parent, progress, now)

    def _emit(self, ended: Ended, parent: tuple[str, int], progress: tuple[int, int], now: int) -> None:
        context = context_from_traceparent(parent[0])
        timing = ended.timing
        start = now - _ns(timing.queue + timing.prefill + timing.decode)
        stages: tuple[tuple[str, float, dict[str, int]], ...] = (
            (names.SPAN_ENGINE_QUEUE, timing.queue, {}),
            (
                names.SPAN_ENGINE_PREFILL,
                timing.prefill,
                {names.ATTR_INPUT_TOKENS: parent[1], names.ATTR_CACHED_TOKENS: progress[1]},
            ),
            (
                names.SPAN_ENGINE_DECODE,
                timing.decode,
                {names.ATTR_OUTPUT_TOKENS: progress[0], names.ATTR_PREEMPTIONS: ended.preemptions},
            ),
        )
        reached = {"queue": 1, "prefill": 2, "decode": 3}[ended.stage.value]
        for index, (name, seconds, attributes) in enumerate(stages[:reached], start=1):
            span = self._tracer.start_span(name, context, SpanKind.INTERNAL, attributes=attributes, start_time=start)
            start += _ns(seconds)
            if index == reached:
                span.set_attribute(names.ATTR_FINISH_REASONS, [ended.reason.value])
                if ended.reason in _FAILURES:
                    span.set_status(Status(StatusCode.ERROR, ended.message or ended.reason.value))
            span.end(start)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
