"""The spans of a call."""

from __future__ import annotations

import asyncio

import pytest
from integration.router.conftest import RunRouter, question
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pagemill_common import errors, telemetry
from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_common.telemetry import Meters, Telemetry, names
from support.fake_replica import FakeReplica, failing, silent, until

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
CALLER = (("traceparent", f"00-{TRACE:032x}-b7ad6b7169203331-01"),)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def setup(*_: object, **__: object) -> Telemetry:
        return Telemetry(provider.get_tracer("test"), Meters(Resource.create()), None)

    monkeypatch.setattr(telemetry, "setup", setup)
    return exporter


def tree(exporter: InMemorySpanExporter) -> dict[str, list[str]]:
    """Span names by the name of their parent; every span is of the caller's trace."""
    finished: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    by_id = {span.context.span_id: span.name for span in finished if span.context}
    children: dict[str, list[str]] = {}
    for span in sorted(finished, key=lambda span: span.start_time or 0):
        assert span.context is not None
        assert span.context.trace_id == TRACE
        parent = by_id.get(span.parent.span_id, "caller") if span.parent else "nobody"
        children.setdefault(parent, []).append(span.name)
    return children


async def test_a_retried_call_shows_each_reserve_and_attempt(
    spans: InMemorySpanExporter, run_router: RunRouter, valkey: RedisServer, pool: CapacityPool
) -> None:
    async with (
        FakeReplica("r0", pool=pool) as one,
        FakeReplica("r1", pool=pool) as two,
        run_router(one, two, redis_url=valkey.url, pool=pool.keys.pool, policy="round_robin") as caller,
    ):
        one.scripts.append(failing(errors.draining(None)))
        heard = await caller.ask(question(max_tokens=2), metadata=CALLER)
        assert heard.error is None
        await caller.idle()
        assert tree(spans) == {
            "caller": ["router.generate"],
            "router.generate": ["router.reserve", "router.attempt 1", "router.reserve", "router.attempt 2"],
        }
        by_name = {span.name: span for span in spans.get_finished_spans()}
        reserve = dict(by_name["router.reserve"].attributes or {})
        assert reserve[names.ATTR_ADMISSION_MODE] == "redis"
        assert reserve[names.ATTR_REPLICA] == "r1"
        assert str(reserve[names.ATTR_RESERVE_REPLY]).startswith(f"granted 1 blocks on r1:{two.epoch}")
        attempt = by_name["router.attempt 2"]
        assert attempt.context is not None
        sent = str(two.seen[0].metadata["traceparent"]).split("-")
        assert sent[1:3] == [f"{TRACE:032x}", f"{attempt.context.span_id:016x}"]
        root = dict(by_name["router.generate"].attributes or {})
        assert (root[names.ATTR_OUTPUT_TOKENS], root[names.ATTR_CODE]) == (2, "OK")


async def test_a_call_that_waits_shows_its_queue(spans: InMemorySpanExporter, run_router: RunRouter) -> None:
    async with FakeReplica(capacity=10, script=silent(after=1)) as replica, run_router(replica) as caller:
        blocker = caller.generation.Generate(question(max_tokens=150), metadata=CALLER)
        await blocker.read()
        await blocker.read()
        spans.clear()
        replica.script = FakeReplica().script
        waiting = asyncio.create_task(caller.ask(question(max_tokens=100), metadata=CALLER))
        await until(lambda: caller.router.room.length == 1)
        blocker.cancel()
        assert (await waiting).error is None
        await caller.idle()
        shown = tree(spans)
        assert set(shown["router.queue"]) == {"router.reserve"}
