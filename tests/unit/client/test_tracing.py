"""The client's span, with and without OpenTelemetry."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pagemill.answer import Finished, FinishReason, Started, Timing, Usage
from pagemill.errors import QueueFull
from pagemill.request import build_request
from pagemill.tracing import SPAN_NAME, CallSpan, NoSpan, OtelSpan, start_span


class Provider:
    """`opentelemetry.trace` with a provider of its own, so that the process keeps none."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self._provider.get_tracer("test")

    def __getattr__(self, name: str) -> object:
        return getattr(trace, name)

    def get_tracer(self, name: str) -> object:
        return self.tracer


@pytest.fixture
def provider() -> Provider:
    return Provider()


def span(provider: Provider, **options: object) -> CallSpan:
    from opentelemetry import propagate

    return OtelSpan(provider, propagate, build_request("hi", None, None, options))  # type: ignore[arg-type]


def test_the_span_sends_its_context_and_keeps_the_outcome(provider: Provider) -> None:
    call = span(provider, model="tiny", max_tokens=4, temperature=0.5)
    finished = Finished(0, FinishReason.MAX_TOKENS, "", None, Usage(5, 0, 4), Timing(0, 0, 0), approximate=False)
    call.end(started=Started("r", "tiny", "replica-0", 5, 0, 1), finished=finished, usage=Usage(5, 0, 4))
    call.end(error=QueueFull("late"))
    (found,) = provider.exporter.get_finished_spans()
    assert (found.name, found.kind) == (SPAN_NAME, SpanKind.CLIENT)
    assert found.status.status_code is StatusCode.UNSET
    attributes = dict(found.attributes or {})
    assert attributes["gen_ai.request.max_tokens"] == 4
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["pagemill.replica"] == "replica-0"
    assert attributes["gen_ai.response.finish_reasons"] == ("max_tokens",)
    headers = dict(call.headers)
    assert headers["traceparent"].split("-")[1:3] == [
        f"{found.context.trace_id:032x}",
        f"{found.context.span_id:016x}",
    ]


def test_a_parent_is_the_applications_current_span(provider: Provider) -> None:
    with provider.tracer.start_as_current_span("application") as parent:
        span(provider).end()
    call = provider.exporter.get_finished_spans()[0]
    assert call.parent is not None
    assert call.parent.span_id == parent.get_span_context().span_id


def test_an_error_marks_the_span(provider: Provider) -> None:
    span(provider).end(error=QueueFull("full", reason="QUEUE_FULL"))
    (found,) = provider.exporter.get_finished_spans()
    assert found.status.status_code is StatusCode.ERROR
    assert dict(found.attributes or {})["error.type"] == "QUEUE_FULL"


def test_without_a_configured_provider_no_header_is_sent() -> None:
    assert dict(start_span(build_request("hi", None, None, {})).headers).get("traceparent") is None


def test_without_opentelemetry_there_is_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert isinstance(start_span(build_request("hi", None, None, {})), NoSpan)
