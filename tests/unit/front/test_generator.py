"""One call from its arrival to its end, whatever ends it: what the engine is told, what is freed, what is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2, model_pb2
from pagemill_common.errors import StatusError
from pagemill_common.telemetry import Meters
from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.engine.messages import Ended, EndReason, NewTokens, Stage, StepReport, Timing
from pagemill_replica.front.admission import Admission, Limits
from pagemill_replica.front.arrival import Arrival
from pagemill_replica.front.drain import Drain, DrainTimes
from pagemill_replica.front.gate import Gate
from pagemill_replica.front.generator import Generator
from pagemill_replica.front.ledger import Ledger
from pagemill_replica.front.link import NO_STATS, EngineLink
from pagemill_replica.front.metrics import ReplicaMetrics
from pagemill_replica.front.models import ModelShelf
from pagemill_replica.front.served import ServedModel
from pagemill_replica.front.state import ReplicaView
from pagemill_replica.front.watch import WatchHub

MODEL = model_pb2.Model(name="m", max_context_tokens=4096, max_request_tokens=4096, vocabulary_size=27, block_size=16)


class Bench:
    """The whole way of a call through the front; the engine says what a test makes it say."""

    def __init__(self, engine: Any, tokenizer: ModelTokenizer) -> None:
        self.engine = engine
        self.hub = WatchHub()
        self.view = ReplicaView("one", "epoch", self.hub)
        self.meters = Meters(Resource.create({}))
        self.spans = InMemorySpanExporter()
        self.executor = ThreadPoolExecutor(1)
        clock = time.monotonic
        self.link = EngineLink(
            engine,
            Ledger(300, clock=clock, on_seen=self.hub.seen),
            self.hub,
            block_size=16,
            clock=clock,
            on_big_change=lambda: None,
            on_step=lambda _: None,
        )
        self.view.link = self.link
        served = ServedModel("m", (), None, tokenizer, b"", b"", "id")  # type: ignore[arg-type] # no file is needed
        shelf = ModelShelf(served, self.executor)
        shelf.open(MODEL)
        admission = Admission(
            self.view, Gate(self.view, never_draining()), shelf, Limits(30.0, 60.0, 1024), clock=clock, rng=Random(1)
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        metrics = ReplicaMetrics(self.meters)
        self.generator = Generator(admission, metrics, provider.get_tracer("t"), replica="one", clock=clock)

    def call(self, write: Callable[[Any], Awaitable[None]], **fields: Any) -> asyncio.Task[None]:
        fields.setdefault("token_ids", pb.TokenIds(ids=[1, 2, 3]))
        fields.setdefault("stop", pb.StopConditions(max_tokens=2000))
        request = pb.GenerateRequest(request_id="r", **fields)
        arrived = Arrival(time.monotonic(), Context(), None, repeated=False)
        return asyncio.create_task(self.generator.run(request, arrived, write))

    async def submitted(self, count: int = 1) -> int:
        """The key of the latest request, once the engine has got `count`."""
        await turns_until(lambda: len(self.engine.submitted) >= count)
        return int(self.engine.submitted[-1].key)

    def report(self, key: int, tokens: list[int], reason: EndReason | None = None) -> None:
        ended = [] if reason is None else [Ended(key, reason, Stage.DECODE, Timing(0.1, 0.2, 0.3))]
        self.link.on_report(StepReport([NewTokens(key, tokens, 0)] if tokens else [], ended, NO_STATS))

    @contextlib.asynccontextmanager
    async def busy_thread(self) -> AsyncIterator[None]:
        """The one thread that prepares prompts has something else to do."""
        free, busy, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()
        self.executor.submit(lambda: (loop.call_soon_threadsafe(busy.set), free.wait()))
        await busy.wait()
        try:
            yield
        finally:
            free.set()

    def assert_left(self, code: str) -> None:
        """The call has left nothing, and was told of once."""
        assert self.generator.active == 0
        spans = self.spans.get_finished_spans()
        assert [(s.attributes or {})["rpc.grpc.status_code"] for s in spans] == [code]
        assert f'code="{code}"' in self.metrics()

    def metrics(self) -> str:
        return generate_latest(self.meters.registry).decode()


async def turns_until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until a condition holds."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def never_draining() -> Drain:
    async def idle() -> None:
        return None

    return Drain(
        DrainTimes(0.0, 0.0),
        clock=time.monotonic,
        live=lambda: 0,
        idle=idle,
        on_begin=lambda: None,
        close_stragglers=lambda: 0,
    )


@pytest_asyncio.fixture
async def bench(engine: Any, tokenizer: ModelTokenizer) -> AsyncIterator[Bench]:
    one = Bench(engine, tokenizer)
    yield one
    one.executor.shutdown()


class Caller:
    """Takes messages until it stops reading."""

    def __init__(self, reads: int = 1_000_000) -> None:
        self.frames: list[pb.GenerateResponse] = []
        self.stuck = asyncio.Event()
        self._reads = reads

    async def write(self, frame: pb.GenerateResponse) -> None:
        if len(self.frames) >= self._reads:
            self.stuck.set()
            await asyncio.Event().wait()
        self.frames.append(frame)


async def test_stream_begins_once_ends_once_and_is_told_once(bench: Bench) -> None:
    caller = Caller()
    call = bench.call(caller.write)
    key = await bench.submitted()
    bench.report(key, [0])
    await asyncio.sleep(0)
    bench.report(key, [1, 2], EndReason.MAX_TOKENS)
    await call
    kinds = [frame.WhichOneof("event") for frame in caller.frames]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert kinds.count("started") == kinds.count("finished") == 1
    assert "".join(frame.delta.text for frame in caller.frames) == "abc"
    assert caller.frames[-1].finished.usage.completion_tokens == 3
    bench.assert_left("OK")
    assert bench.link.ledger.committed == 0


async def test_tokens_between_messages_are_counted_one_by_one(bench: Bench) -> None:
    caller = Caller()
    call = bench.call(caller.write)
    key = await bench.submitted()
    for tokens in ([0], [1], [2, 3, 4]):
        seen = len(caller.frames)
        bench.report(key, tokens)
        await turns_until(lambda: len(caller.frames) > seen)  # noqa: B023 - done before the next turn
    bench.report(key, [], EndReason.MAX_TOKENS)
    await call
    assert 'pagemill_inter_token_latency_seconds_count{model="m"} 4.0' in bench.metrics()


@pytest.mark.parametrize("ending", ["slow", "lost", "superseded", "closed"])
async def test_failed_stream_ends_at_once_also_where_the_caller_does_not_read(bench: Bench, ending: str) -> None:
    caller = Caller(reads=2)
    call = bench.call(caller.write)
    key = await bench.submitted()
    bench.report(key, [0])
    bench.report(key, [1])
    await turns_until(lambda: len(caller.frames) >= 2)
    bench.report(key, [2])
    await caller.stuck.wait()
    match ending:
        case "slow":
            bench.report(key, [3] * 1024)
        case "lost":
            bench.link.on_lost("died")
        case "superseded":
            bench.link._live[key].supersede(2)
        case "closed":
            bench.link.fail_all(lambda: StatusError(grpc.StatusCode.UNAVAILABLE, "draining"))
    with pytest.raises(StatusError) as caught:
        await call
    bench.assert_left(caught.value.code.name)
    assert (bench.engine.aborted == []) == (ending == "lost")


@pytest.mark.parametrize("complete", [False, True])
async def test_time_limit_holds_for_a_caller_that_does_not_read(bench: Bench, complete: bool) -> None:
    caller = Caller(reads=0)
    call = bench.call(caller.write, timeout=Duration(nanos=50_000_000))
    key = await bench.submitted()
    bench.report(key, [0], EndReason.MAX_TOKENS if complete else None)
    with pytest.raises(StatusError) as caught:
        await call
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    bench.assert_left("DEADLINE_EXCEEDED")


async def test_timeout_of_a_write_itself_is_a_fault(bench: Bench) -> None:
    async def write(_: object) -> None:
        raise TimeoutError("the transport gave up")

    call = bench.call(write)
    bench.report(await bench.submitted(), [0])
    with pytest.raises(TimeoutError, match="gave up"):
        await call
    bench.assert_left("INTERNAL")


async def test_cancel_while_prompts_are_prepared_charges_nothing_and_reports_the_reservation(bench: Bench) -> None:
    placed = internal_pb2.Placement(call_id="c", attempt=1, epoch="epoch", reservation_id="held")
    async with bench.busy_thread():
        call = bench.call(Caller().write, text="abc", token_ids=None, placement=placed)
        await turns_until(lambda: bench.generator.active > 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert bench.link.ledger.seen() == ("held",), "Redis would charge for it until it expires"
    assert bench.engine.submitted == []
    bench.assert_left("CANCELLED")


@pytest.mark.parametrize("moment", ["queued", "writing", "finishing"])
async def test_cancel_tells_the_engine_and_frees_the_name(bench: Bench, moment: str) -> None:
    caller = Caller(reads=0 if moment == "writing" else 1_000_000)
    call = bench.call(caller.write, stop=pb.StopConditions(max_tokens=9, strings=["b"]))
    key = await bench.submitted()
    if moment == "writing":
        bench.report(key, [0])
        await caller.stuck.wait()
    if moment == "finishing":
        bench.report(key, [0, 1])
        await turns_until(lambda: len(caller.frames) >= 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert set(bench.engine.aborted) == {key}
    assert bench.link.ledger.committed > 0, "the engine still has its blocks"
    bench.report(key, [], EndReason.ABORTED)
    assert (bench.link.ledger.committed, bench.link.live) == (0, 0)
    bench.assert_left("CANCELLED")
    again = bench.call(Caller().write)
    bench.report(await bench.submitted(2), [0], EndReason.MAX_TOKENS)
    await again


async def test_engine_that_dies_under_a_submit_is_unavailable_and_leaves_no_charge(bench: Bench) -> None:
    bench.engine.gone = True
    caller = Caller()
    with pytest.raises(StatusError) as caught:
        await bench.call(caller.write)
    assert caught.value.reason == "REPLICA_LOST"
    assert caller.frames == []
    assert (bench.link.ledger.committed, bench.link.live) == (0, 0)
    bench.assert_left("UNAVAILABLE")


async def test_long_replay_does_not_hold_the_loop(bench: Bench) -> None:
    """It runs in the thread, so that a thread that is busy delays it while the loop goes on."""
    told = internal_pb2.ChoiceProgress(token_ids=[0] * 1500, text_bytes=1500)
    continuation = internal_pb2.Continuation(choices=[told], seed=1, prompt_tokens=3)
    placed = internal_pb2.Placement(call_id="c", attempt=2, epoch="epoch", continuation=continuation)
    caller = Caller()
    async with bench.busy_thread():
        call = bench.call(caller.write, placement=placed)
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.engine.submitted == []
    key = await bench.submitted()
    bench.report(key, [1], EndReason.MAX_TOKENS)
    await call
    delta = caller.frames[1].delta
    assert (delta.text, delta.position, delta.text_offset) == ("b", 1500, 1500)
