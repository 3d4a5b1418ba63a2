"""Traces and metrics through OpenTelemetry: set-up, W3C context in gRPC metadata, one Prometheus port."""

from __future__ import annotations

from pagemill_common.telemetry.context import context_from_traceparent, extract, inject, trace_id, traceparent
from pagemill_common.telemetry.metrics import Meters, gauge_callback
from pagemill_common.telemetry.metrics_port import MetricsPort
from pagemill_common.telemetry.tracing import Telemetry, setup

__all__ = [
    "Meters",
    "MetricsPort",
    "Telemetry",
    "context_from_traceparent",
    "extract",
    "gauge_callback",
    "inject",
    "setup",
    "trace_id",
    "traceparent",
]
