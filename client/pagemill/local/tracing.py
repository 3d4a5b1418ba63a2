"""OpenTelemetry for the command line's own process, towards a collector in it."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from pagemill.local.collector import Collector, CollectorExporter


def trace_this_process(collector: Collector) -> None:
    """Records this process's spans and hands them to the collector. Once in the life of a process."""
    resource = Resource.create({"service.name": "pagemill-client", "process.pid": os.getpid()})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(SimpleSpanProcessor(CollectorExporter(collector)))
    trace.set_tracer_provider(provider)
