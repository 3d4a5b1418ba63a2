"""The client's span and the context it sends, where the application uses OpenTelemetry.

OpenTelemetry is never loaded by this library: an application that has configured it has imported it, and only then
it is used.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol

from pagemill.answer import Finished, Started, Usage
from pagemill.errors import PagemillError
from pagemill.v1 import generation_pb2 as pb

SPAN_NAME = "pagemill.generate"


class CallSpan(Protocol):
    """The span of one call, or nothing in its place."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Metadata that carries the trace context."""
        ...

    def first_chunk(self) -> None:
        """The first output has arrived."""
        ...

    def end(
        self,
        *,
        started: Started | None = None,
        finished: Finished | None = None,
        usage: Usage | None = None,
        error: PagemillError | None = None,
        cancelled: bool = False,
    ) -> None:
        """The call is over; later ends do nothing."""
        ...


class NoSpan:
    """For applications without OpenTelemetry."""

    headers: list[tuple[str, str]] = []  # noqa: RUF012 - shared and empty, as the protocol has it

    def first_chunk(self) -> None:
        """Nothing."""

    def end(
        self,
        *,
        started: Started | None = None,
        finished: Finished | None = None,
        usage: Usage | None = None,
        error: PagemillError | None = None,
        cancelled: bool = False,
    ) -> None:
        """Nothing."""


class OtelSpan:
    """A client span of OpenTelemetry, named by the conventions for generative AI."""

    def __init__(self, trace: Any, propagate: Any, request: pb.GenerateRequest) -> None:
        self._trace = trace
        self._open = True
        operation = "chat" if request.WhichOneof("input") == "chat" else "text_completion"
        attributes: dict[str, str | int | float] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "pagemill",
            "rpc.system": "grpc",
        }
        if request.model:
            attributes["gen_ai.request.model"] = request.model
        if request.stop.HasField("max_tokens"):
            attributes["gen_ai.request.max_tokens"] = request.stop.max_tokens
        if request.sampling.HasField("temperature"):
            attributes["gen_ai.request.temperature"] = request.sampling.temperature
        self._span = trace.get_tracer("pagemill").start_span(
            SPAN_NAME, kind=trace.SpanKind.CLIENT, attributes=attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(self._span))
        self.headers = [(key.lower(), value) for key, value in carrier.items()]

    def first_chunk(self) -> None:
        """Adds the event that time to first token is read from."""
        self._span.add_event("first_chunk")

    def end(
        self,
        *,
        started: Started | None = None,
        finished: Finished | None = None,
        usage: Usage | None = None,
        error: PagemillError | None = None,
        cancelled: bool = False,
    ) -> None:
        """Sets the outcome and ends the span, once."""
        if not self._open:
            return
        self._open = False
        span = self._span
        if started is not None:
            span.set_attribute("gen_ai.response.model", started.model)
            span.set_attribute("pagemill.request_id", started.request_id)
            span.set_attribute("pagemill.replica", started.replica)
        if finished is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [str(finished.reason)])
        if usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        if cancelled:
            span.set_attribute("pagemill.cancelled", True)
        if error is not None:
            span.set_attribute("error.type", error.reason or str(error.code.name))
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error.message))
        span.end()


def start_span(request: pb.GenerateRequest) -> CallSpan:
    """A span for the call, child of the application's current one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return NoSpan()
    return OtelSpan(trace, importlib.import_module("opentelemetry.propagate"), request)
