"""One log line, one count and one span status for each finished call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.trace import Span, Status, StatusCode

from pagemill_common import logs
from pagemill_common.errors import StatusError
from pagemill_common.telemetry import names
from pagemill_router.placement.job import Job
from pagemill_router.relay.relay import Outcome
from pagemill_router.telemetry import RouterTelemetry

_log = logs.get("pagemill.router.calls")


@dataclass(slots=True)
class CallRecord:
    """What is known of a call when it ends."""

    method: str
    request_id: str
    arrived: float
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
        code, reason = "CANCELLED", ""
        raise
    except BaseException:
        code, reason = "INTERNAL", "INTERNAL"
        raise
    finally:
        _write(record, span, telemetry, clock() - record.arrived, code, reason)


def _write(record: CallRecord, span: Span, telemetry: RouterTelemetry, seconds: float, code: str, reason: str) -> None:
    job, outcome = record.job, record.outcome
    model = job.model if job is not None else ""
    tokens = outcome.delivered.tokens
    first = outcome.first_frame_at
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "method": record.method,
        "model": model,
        "code": code,
        "reason": reason,
        "replica": outcome.replica,
        "attempts": outcome.attempts,
        "admission": outcome.mode,
        "prompt_tokens": job.prompt_tokens if job is not None else 0,
        "output_tokens": tokens,
        "first_token_seconds": round(first - record.arrived, 6) if first is not None else None,
        "seconds": round(seconds, 6),
    }
    _log.info("request finished", **{key: value for key, value in fields.items() if value not in ("", None)})
    telemetry.finished(model, record.method, code, reason, seconds)
    span.set_attribute(names.ATTR_MODEL, model)
    span.set_attribute(names.ATTR_CODE, code)
    span.set_attribute(names.ATTR_OUTPUT_TOKENS, tokens)
    if job is not None:
        span.set_attribute(names.ATTR_INPUT_TOKENS, job.prompt_tokens)
        span.set_attribute(names.ATTR_CALL_ID, job.call_id)
    if outcome.replica:
        span.set_attribute(names.ATTR_REPLICA, outcome.replica)
