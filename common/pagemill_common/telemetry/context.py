"""W3C trace context in gRPC metadata and in engine messages."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_KEYS = ("traceparent", "tracestate")


def extract(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """The context that a caller sent in its metadata; an empty one where there is none or it is broken."""
    carrier: dict[str, str] = {}
    for key, value in metadata or ():
        if key in _KEYS and isinstance(value, str):
            carrier.setdefault(key, value)
    return _PROPAGATOR.extract(carrier, context=Context())


def inject(context: Context | None = None) -> list[tuple[str, str]]:
    """Metadata that hands `context`, or the current one, to a server."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return list(carrier.items())


def traceparent(span: Span) -> str:
    """The traceparent header for children of `span`; empty where the span has no identity."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def context_from_traceparent(header: str) -> Context:
    """The context of a traceparent header; an empty one where it is empty or broken."""
    return _PROPAGATOR.extract({"traceparent": header} if header else {}, context=Context())


def trace_id(of: Span | Context | None = None) -> str:
    """The trace id in 32 hexadecimal digits of a span, a context or the current span; empty where there is none."""
    span = of if isinstance(of, Span) else trace.get_current_span(of)
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""
