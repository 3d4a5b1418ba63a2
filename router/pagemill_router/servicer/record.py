"""One log line, one count and one span status for each finished call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import Span, Status, StatusCode

from pagemill_common import logs
from pagemill_common.cancellation import being_cancelled
from pagemill_common.errors import StatusError
from pagemill_common.request_line import RequestLine, milliseconds
from pagemill_common.telemetry import names
from pagemill_router.placement.job import Job
from pagemill_router.relay.relay import Outcome
from pagemill_router.servicer.intake import Known
from pagemill_router.telemetry import RouterTelemetry

_log = logs.get("pagemill.router.calls")


@dataclass(slots=True)
class CallRecord:
    """What is known of a call when it ends."""

    method: str
    request_id: str
    arrived: float
    known: Known = field(default_factory=Known)
    job: Job | None = None
    outcome: Outcome = field(default_factory=Outcome)


@contextmanager
def recorded(
    record: CallRecord, span: Span, telemetry: RouterTelemetry, clock: Callable[[], float]
) -> Iterator[CallRecord]:
    """Writes the call down when the block is left, whichever way."""
    code, reason = "OK", ""
    try:
        yield record
    except StatusError as failure:
        code, reason = failure.code.name, failure.reason
        span.set_status(Status(StatusCode.ERROR, f"{code} {reason}: {failure.message}"))
        raise
    except asyncio.CancelledError:
        # A stray one is taken for a fault by the interceptor, which answers INTERNAL.
        if being_cancelled():
            code, reason = "CANCELLED", ""
        else:
            code, reason = "INTERNAL", "INTERNAL"
        raise
    except BaseException:
        code, reason = "INTERNAL", "INTERNAL"
        raise
    finally:
        _write(record, span, telemetry, clock() - record.arrived, code, reason)


def _write(record: CallRecord, span: Span, telemetry: RouterTelemetry, seconds: float, code: str, reason: str) -> None:
    job, outcome = record.job, record.outcome
    model = record.known.model
    tokens = outcome.delivered.tokens
    first = outcome.first_frame_at
    line = RequestLine(
        request_id=record.request_id,
        model=model,
        code=code,
        reason=reason,
        prompt_tokens=record.known.prompt_tokens or None,
        completion_tokens=tokens,
        ttft_ms=None if first is None else milliseconds(first - record.arrived),
        duration_ms=round(seconds * 1000, 2),
    )
    line.write(_log, method=record.method, replica=outcome.replica, attempts=outcome.attempts, admission=outcome.mode)
    telemetry.finished(model, record.method, code, reason, seconds)
    span.set_attribute(names.ATTR_MODEL, model)
    span.set_attribute(names.ATTR_CODE, code)
    span.set_attribute(names.ATTR_OUTPUT_TOKENS, tokens)
    if record.known.prompt_tokens:
        span.set_attribute(names.ATTR_INPUT_TOKENS, record.known.prompt_tokens)
    if job is not None:
        span.set_attribute(names.ATTR_CALL_ID, job.call_id)
    if outcome.replica:
        span.set_attribute(names.ATTR_REPLICA, outcome.replica)
