"""A receiver for OpenTelemetry spans on loopback, and the spans it has received.

Needs what the `router` extra installs; imported only where a trace is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from pagemill.local.spans import SpanRecord


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP trace service that keeps what it gets. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, str], SpanRecord] = {}
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4, thread_name_prefix="otlp"))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        """What to give tiers as --otlp-endpoint."""

    @property
    def spans(self) -> list[SpanRecord]:
        """All spans so far."""
        with self._lock:
            return list(self._spans.values())

    def Export(  # noqa: N802 - the name in the protocol
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Takes spans in; the same span twice counts once."""
        self.add(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def add(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        """Takes spans in that did not come over the network."""
        with self._lock:
            for record in records(request):
                self._spans[record.trace_id, record.span_id] = record

    def __enter__(self) -> Collector:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=1).wait()


class CollectorExporter(SpanExporter):
    """Hands this process's own spans to a collector."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encodes the spans as a tier would and adds them."""
        self._collector.add(encode_spans(spans))
        return SpanExportResult.SUCCESS


def records(request: trace_service_pb2.ExportTraceServiceRequest) -> list[SpanRecord]:
    """The spans of an export, as plain values."""
    found = []
    for resource in request.resource_spans:
        about = {a.key: _value(a.value) for a in resource.resource.attributes}
        for scope in resource.scope_spans:
            found += [
                SpanRecord(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    name=span.name,
                    start=span.start_time_unix_nano / 1e9,
                    end=span.end_time_unix_nano / 1e9,
                    service=str(about.get("service.name", "")),
                    pid=int(str(about.get("process.pid", 0))),
                    attributes={a.key: _value(a.value) for a in span.attributes},
                    failed=span.status.code == 2,
                )
                for span in scope.spans
            ]
    return found


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
