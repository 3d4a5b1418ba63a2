"""What is told of one request once it has ended: one log line, its span, its metrics."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from opentelemetry.trace import Span, Status, StatusCode

from pagemill_common import errors, logs
from pagemill_common.request_line import RequestLine, milliseconds
from pagemill_common.telemetry import names, trace_id

_log = logs.get("pagemill.replica.request")


@dataclass(slots=True)
class RequestRecord:
    """Filled while the request lives. Times in seconds."""

    span: Span
    arrived: float
    operation: str = names.OPERATION_TEXT
    request_id: str = ""
    call_id: str = ""
    attempt: int = 1
    router: str = ""
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    queue: float | None = None
    """In the engine before its first step."""
    ttft: float | None = None
    """From arrival to the first token."""
    itl: float | None = None
    """Mean time of a token after the first."""
    duration: float = 0.0
    outcome: str = "cancelled"
    """A finish reason, or the reason of the failure."""
    code: str = grpc.StatusCode.CANCELLED.name
    """The gRPC status."""

    def failed(self, failure: BaseException) -> None:
        """The request ends with a status."""
        if isinstance(failure, errors.StatusError):
            self.outcome, self.code = failure.reason or failure.code.name, failure.code.name
        else:
            self.outcome, self.code = errors.Reason.INTERNAL.value, grpc.StatusCode.INTERNAL.name

    def count_prompt(self, tokens: int) -> None:
        """The prompt has been tokenised; whether it fits is another matter. Called from a thread."""
        self.prompt_tokens = tokens

    def finished(self, reason: str) -> None:
        """The request ends well."""
        self.outcome, self.code = reason, grpc.StatusCode.OK.name

    def close(self, now: float) -> None:
        """Writes the log line and ends the span."""
        self.duration = now - self.arrived
        line = RequestLine(
            request_id=self.request_id,
            model=self.model,
            code=self.code,
            reason=self.outcome,
            prompt_tokens=self.prompt_tokens or None,
            completion_tokens=self.completion_tokens,
            ttft_ms=milliseconds(self.ttft),
            duration_ms=round(self.duration * 1000, 2),
        )
        line.write(
            _log,
            call_id=self.call_id,
            attempt=self.attempt,
            router=self.router,
            trace_id=trace_id(self.span),
            cached_tokens=self.cached_tokens,
            queue_ms=milliseconds(self.queue),
            itl_ms=milliseconds(self.itl),
            preemptions=self.preemptions,
        )
        self._end_span()

    def _end_span(self) -> None:
        span = self.span
        if span.is_recording():
            span.set_attributes(
                {
                    names.ATTR_OPERATION: self.operation,
                    names.ATTR_PROVIDER: names.PROVIDER,
                    names.ATTR_MODEL: self.model,
                    names.ATTR_REQUEST_ID: self.request_id,
                    names.ATTR_CALL_ID: self.call_id,
                    names.ATTR_ATTEMPT: self.attempt,
                    names.ATTR_ROUTER: self.router,
                    names.ATTR_INPUT_TOKENS: self.prompt_tokens,
                    names.ATTR_CACHED_TOKENS: self.cached_tokens,
                    names.ATTR_OUTPUT_TOKENS: self.completion_tokens,
                    names.ATTR_FINISH_REASONS: [self.outcome],
                    names.ATTR_CODE: self.code,
                }
            )
            if self.code not in ("OK", "CANCELLED"):
                span.set_attribute(names.ATTR_ERROR_TYPE, self.outcome)
                span.set_status(Status(StatusCode.ERROR, self.outcome))
        span.end()
