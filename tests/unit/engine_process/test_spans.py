"""The engine's spans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pagemill_common.telemetry import Meters, Telemetry, names
from pagemill_replica.engine.messages import (
    Ended,
    EndReason,
    EngineStats,
    NewTokens,
    Stage,
    StepReport,
    Submit,
    Timing,
)
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.engine_process.spans import EngineSpans

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
STATS = EngineStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
SUBMIT = Submit(1, [5, 6, 7], Sampling(), Stop(4), traceparent=PARENT)
NOW = 100_000_000_000


class Recorded:
    def __init__(self, exporting: bool = True) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = Meters(Resource.create({}))
        telemetry = Telemetry(provider.get_tracer("t"), meters, provider if exporting else None)
        self.spans = EngineSpans(telemetry, lambda: NOW)

    def report(self, tokens: list[int], ended: Ended | None = None) -> None:
        new = [NewTokens(1, tokens, 2)] if tokens else []
        self.spans.ended(StepReport(new, [] if ended is None else [ended], STATS))

    @property
    def found(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


def ended(reason: EndReason, stage: Stage, **fields: Any) -> Ended:
    return Ended(1, reason, stage, Timing(1.0, 2.0, 3.0), **fields)


def test_three_spans_follow_each_other_up_to_the_end_and_hang_under_the_caller() -> None:
    recorded = Recorded()
    recorded.spans.submitted(SUBMIT)
    recorded.report([8])
    recorded.report([9, 10], ended(EndReason.MAX_TOKENS, Stage.DECODE, preemptions=2))
    queue, prefill, decode = recorded.found
    assert [s.name for s in (queue, prefill, decode)] == [
        names.SPAN_ENGINE_QUEUE,
        names.SPAN_ENGINE_PREFILL,
        names.SPAN_ENGINE_DECODE,
    ]
    assert {f"{s.context.trace_id:032x}" for s in (queue, prefill, decode)} == {TRACE}
    assert {f"{s.parent.span_id:016x}" for s in (queue, prefill, decode)} == {"b7ad6b7169203331"}
    seconds = [NOW // 10**9 - 6, NOW // 10**9 - 5, NOW // 10**9 - 3, NOW // 10**9]
    assert [s.start_time for s in (queue, prefill, decode)] == [t * 10**9 for t in seconds[:3]]
    assert [s.end_time for s in (queue, prefill, decode)] == [t * 10**9 for t in seconds[1:]]
    assert prefill.attributes == {names.ATTR_INPUT_TOKENS: 3, names.ATTR_CACHED_TOKENS: 2}
    assert decode.attributes[names.ATTR_OUTPUT_TOKENS] == 3
    assert decode.attributes[names.ATTR_PREEMPTIONS] == 2
    assert decode.attributes[names.ATTR_FINISH_REASONS] == ("max_tokens",)
    assert decode.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(("stage", "count"), [(Stage.QUEUE, 1), (Stage.PREFILL, 2), (Stage.DECODE, 3)])
def test_stage_that_was_never_reached_has_no_span(stage: Stage, count: int) -> None:
    recorded = Recorded()
    recorded.spans.submitted(SUBMIT)
    recorded.report([], ended(EndReason.TIMEOUT, stage))
    assert len(recorded.found) == count
    assert recorded.found[-1].status.status_code is StatusCode.ERROR


def test_cancel_is_no_error() -> None:
    recorded = Recorded()
    recorded.spans.submitted(SUBMIT)
    recorded.report([], ended(EndReason.ABORTED, Stage.DECODE))
    assert recorded.found[-1].status.status_code is StatusCode.UNSET


def test_each_request_is_told_once_and_then_forgotten() -> None:
    recorded = Recorded()
    recorded.spans.submitted(SUBMIT)
    for _ in range(2):
        recorded.report([8], ended(EndReason.MAX_TOKENS, Stage.DECODE))
    assert len(recorded.found) == 3
    assert not recorded.spans._parents
    assert not recorded.spans._progress


@pytest.mark.parametrize(("exporting", "parent"), [(False, PARENT), (True, "")])
def test_nothing_is_kept_where_no_span_would_leave(exporting: bool, parent: str) -> None:
    recorded = Recorded(exporting)
    recorded.spans.submitted(replace(SUBMIT, traceparent=parent))
    assert not recorded.spans._parents
    recorded.report([8], ended(EndReason.MAX_TOKENS, Stage.DECODE))
    assert recorded.found == []
