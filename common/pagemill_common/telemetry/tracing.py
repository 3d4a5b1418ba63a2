"""One tracer for each process: exporting where an endpoint is set, else nearly free.

Without an endpoint spans are not recorded, yet every request still has a trace id that goes from tier to tier and into
the log lines, so that the lines of one request can be found.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, NoOpTracer, Span, SpanContext, SpanKind, Tracer
from opentelemetry.util.types import Attributes

from pagemill_common.telemetry.metrics import Meters

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Read where no endpoint is given."""


class Telemetry:
    """The process's tracer and meters. `shutdown()` sends what is left."""

    def __init__(self, tracer: Tracer, meters: Meters, provider: TracerProvider | None) -> None:
        self.tracer = tracer
        self.meters = meters
        self._provider = provider

    @property
    def exporting(self) -> bool:
        """Spans leave the process."""
        return self._provider is not None

    def shutdown(self, timeout: float = 5.0) -> None:
        """Sends the spans that are left and closes the Prometheus port. Blocks for `timeout` seconds at most."""
        if self._provider is not None:
            # In a thread that may be left behind: with its receiver gone the exporter takes longer than it is told.
            flush = threading.Thread(target=self._provider.shutdown, name="telemetry-flush", daemon=True)
            flush.start()
            flush.join(timeout)
        self.meters.shutdown()


def setup(
    service_name: str,
    endpoint: str | None = None,
    *,
    instance: str = "",
    attributes: Mapping[str, str | int] | None = None,
) -> Telemetry:
    """Sets up traces and metrics for this process.

    `endpoint` is that of an OTLP receiver over gRPC, such as http://localhost:4317; None or empty takes
    OTEL_EXPORTER_OTLP_ENDPOINT, and without either no span is recorded. `instance` goes into service.instance.id.
    """
    resource = Resource.create(
        {
            "service.name": service_name,
            "service.namespace": "pagemill",
            "service.instance.id": instance or f"{service_name}-{os.getpid()}",
            "process.pid": os.getpid(),
            **(attributes or {}),
        }
    )
    meters = Meters(resource)
    target = endpoint or os.environ.get(ENDPOINT_VARIABLE, "")
    if not target:
        return Telemetry(_CorrelationTracer(), meters, None)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=target, insecure=not target.startswith("https://"), timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return Telemetry(provider.get_tracer("pagemill"), meters, provider)


class _CorrelationTracer(NoOpTracer):
    """Records nothing; a root span draws a trace id, any other stands for its parent."""

    def __init__(self) -> None:
        self._ids = RandomIdGenerator()

    def start_span(
        self,
        name: str,
        context: otel_context.Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: object = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        parent = trace.get_current_span(context).get_span_context()
        if parent.is_valid:
            return NonRecordingSpan(parent)
        return NonRecordingSpan(
            SpanContext(self._ids.generate_trace_id(), self._ids.generate_span_id(), is_remote=False)
        )
