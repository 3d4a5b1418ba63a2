"""Traces to a real OTLP receiver, W3C context, metrics on a real port."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.trace import SpanKind

from pagemill_common import telemetry
from pagemill_common.listen import ListenError
from pagemill_common.telemetry import names

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Receiver(otlp_grpc.TraceServiceServicer):
    """Keeps what is exported to it."""

    def __init__(self) -> None:
        self.requests: list[otlp.ExportTraceServiceRequest] = []

    def Export(self, request: otlp.ExportTraceServiceRequest, context: Any) -> otlp.ExportTraceServiceResponse:
        self.requests.append(request)
        return otlp.ExportTraceServiceResponse()

    @property
    def spans(self) -> dict[str, Any]:
        return {s.name: s for r in self.requests for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans}

    @property
    def resource(self) -> dict[str, str]:
        attributes = self.requests[0].resource_spans[0].resource.attributes
        return {a.key: a.value.string_value or str(a.value.int_value) for a in attributes}


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    server, servicer = grpc.server(ThreadPoolExecutor(2)), Receiver()
    otlp_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(0).wait()


def test_spans_reach_the_receiver_with_parent_and_resource(receiver: tuple[Receiver, str]) -> None:
    servicer, endpoint = receiver
    setup = telemetry.setup("svc", endpoint, instance="one", attributes={"pagemill.pool": "p"})
    assert setup.exporting
    span = setup.tracer.start_span("outer", telemetry.extract([("traceparent", PARENT)]), SpanKind.SERVER)
    inner = telemetry.context_from_traceparent(telemetry.traceparent(span))
    setup.tracer.start_span("inner", inner, start_time=1_000).end(2_000)
    span.end()
    setup.shutdown()
    outer, nested = servicer.spans["outer"], servicer.spans["inner"]
    assert outer.trace_id.hex() == nested.trace_id.hex() == PARENT.split("-")[1]
    assert outer.parent_span_id.hex() == PARENT.split("-")[2]
    assert nested.parent_span_id == outer.span_id
    assert (nested.start_time_unix_nano, nested.end_time_unix_nano) == (1_000, 2_000)
    assert servicer.resource["service.name"] == "svc"
    assert servicer.resource["process.pid"] == str(os.getpid())
    assert servicer.resource["service.instance.id"] == "one"
    assert servicer.resource["pagemill.pool"] == "p"


def test_endpoint_of_the_environment_counts(receiver: tuple[Receiver, str], monkeypatch: pytest.MonkeyPatch) -> None:
    servicer, endpoint = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    setup = telemetry.setup("svc")
    setup.tracer.start_span("one").end()
    setup.shutdown()
    assert "one" in servicer.spans


def test_receiver_that_is_gone_delays_the_end_but_little() -> None:
    setup = telemetry.setup("svc", "http://127.0.0.1:1")
    setup.tracer.start_span("one").end()
    setup.shutdown(timeout=0.2)


def test_without_endpoint_a_root_gets_an_identity_and_a_child_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    setup = telemetry.setup("svc")
    assert not setup.exporting
    root, other = setup.tracer.start_span("root", Context()), setup.tracer.start_span("other", Context())
    assert telemetry.trace_id(root)
    assert telemetry.trace_id(root) != telemetry.trace_id(other)
    assert not root.is_recording()
    child = setup.tracer.start_span("child", telemetry.extract([("traceparent", PARENT)]))
    assert telemetry.traceparent(child).split("-")[1:3] == PARENT.split("-")[1:3]
    with setup.tracer.start_as_current_span("current") as current:
        assert dict(telemetry.inject())["traceparent"] == telemetry.traceparent(current)
        assert telemetry.trace_id() == telemetry.trace_id(current)
    setup.shutdown()


@pytest.mark.parametrize(
    "metadata",
    [None, [], [("traceparent", "nonsense")], [("traceparent", b"bytes")], [("traceparent", PARENT + "-x" * 9000)]],
)
def test_broken_context_is_none(metadata: Any) -> None:
    assert telemetry.trace_id(telemetry.extract(metadata)) == ""
    assert telemetry.trace_id(telemetry.context_from_traceparent("nonsense")) == ""


def test_metrics_are_read_from_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    setup = telemetry.setup("svc")
    meters = setup.meters
    port = meters.listen("127.0.0.1:0")
    meters.histogram(names.TIME_TO_FIRST_TOKEN, "x").record(0.3, {names.ATTR_MODEL: "m"})
    meters.counter(names.REQUESTS, "x").add(2, {names.ATTR_CODE: "OK"})
    meters.gauge("pagemill.modes", "x", lambda: {"redis": 1, "local": 0}, label="mode")
    meters.gauge("pagemill.plain", "x", lambda: 4.5)
    meters.rising("pagemill.steps", "x", lambda: 9)
    text = urllib.request.urlopen(f"http://{port.address}/metrics").read().decode()
    for line in (
        'gen_ai_server_time_to_first_token_seconds_bucket{gen_ai_request_model="m",le="0.25"} 0.0',
        'gen_ai_server_time_to_first_token_seconds_bucket{gen_ai_request_model="m",le="0.5"} 1.0',
        'pagemill_requests_total{rpc_grpc_status_code="OK"} 2.0',
        'pagemill_modes{mode="redis"} 1.0',
        "pagemill_plain 4.5",
        "pagemill_steps_total 9.0",
    ):
        assert line in text, line
    with pytest.raises(ListenError, match=f"^--metrics-listen {port.address}: Address already in use$"):
        telemetry.setup("other").meters.listen(port.address)
    setup.shutdown()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{port.address}/metrics")


def test_two_set_ups_in_one_process_do_not_mix() -> None:
    one, two = telemetry.setup("one"), telemetry.setup("two")
    one.meters.counter("pagemill.only_one", "x").add(1)
    port = two.meters.listen("127.0.0.1:0")
    text = urllib.request.urlopen(f"http://{port.address}/metrics").read().decode()
    assert "only_one" not in text
    one.shutdown()
    two.shutdown()
