"""The table of log fields, read from the lines that the code writes for a finished call."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import INVALID_SPAN, NoOpTracer

from doc_tables.markdown import code, table
from pagemill_common.errors import StatusError, draining
from pagemill_common.telemetry import Meters, Telemetry
from pagemill_replica.front.record import RequestRecord
from pagemill_router.relay.relay import Outcome
from pagemill_router.servicer.intake import Known
from pagemill_router.servicer.record import CallRecord, recorded
from pagemill_router.telemetry import RouterTelemetry

_MEANINGS = {
    "request_id": "the caller's, or the one that was drawn",
    "call_id": "drawn by the router; the same in all attempts of a call",
    "attempt": "which attempt of the call this was, from 1",
    "router": "the router that sent it; empty for a direct call",
    "trace_id": "of the caller's trace, or drawn; the same in all tiers",
    "method": "`Generate` or another",
    "model": "the served name",
    "replica": "the last replica that was tried",
    "attempts": "replicas that were tried",
    "admission": "`redis` or `local`",
    "prompt_tokens": "tokens of the prompt",
    "cached_tokens": "of these, found in the prefix cache",
    "completion_tokens": "tokens generated, or that passed the router",
    "queue_ms": "in the engine before its first step",
    "ttft_ms": "from arrival at this tier to the first token",
    "itl_ms": "mean time of a token after the first",
    "duration_ms": "from arrival at this tier to the end",
    "preemptions": "how often the request lost its blocks to others",
    "code": "the gRPC status",
    "reason": "replica: the finish reason or the error's; router: the error's",
}


class _Catcher(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.fields: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.fields |= vars(record)["pagemill_fields"].keys()


def log_fields() -> str:
    """One row for each field of `request finished`; ValueError where one is not described here, or gone."""
    router = _fields("pagemill.router.calls", _router_line) | {"trace_id"}
    replica = _fields("pagemill.replica.request", _replica_line) | {"trace_id"}
    if router | replica != _MEANINGS.keys():
        odd = ", ".join(sorted((router | replica) ^ _MEANINGS.keys()))
        raise ValueError(f"the log line of a call and docs/doc_tables/logs.py do not have the same fields: {odd}")
    rows = [
        (code(name), "yes" if name in router else "", "yes" if name in replica else "", text)
        for name, text in _MEANINGS.items()
    ]
    return table(("field", "router", "replica", "meaning"), rows)


def _fields(logger: str, write: Callable[[], None]) -> set[str]:
    log, catcher = logging.getLogger(logger), _Catcher()
    log.addHandler(catcher)
    log.setLevel(logging.INFO)
    log.propagate = False
    write()
    log.removeHandler(catcher)
    return catcher.fields


def _router_line() -> None:
    telemetry = RouterTelemetry(Telemetry(NoOpTracer(), Meters(Resource.create()), None))
    job: Any = SimpleNamespace(model="x", prompt_tokens=1, call_id="x")
    outcome = Outcome(replica="x", attempts=1, mode="redis", first_frame_at=0.0)
    record = CallRecord("x", "x", 0.0, Known("x", 1), job, outcome)
    # An error, so that the line has a reason.
    with contextlib.suppress(StatusError), recorded(record, INVALID_SPAN, telemetry, lambda: 1.0):
        raise draining(None)


def _replica_line() -> None:
    ids = dict.fromkeys(("request_id", "call_id", "router", "model"), "x")
    RequestRecord(INVALID_SPAN, 0.0, prompt_tokens=1, queue=0.0, ttft=0.0, itl=0.0, **ids).close(1.0)
