"""What calls send, how they stream, retry, time out and cancel."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2

import pagemill
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from support.fake_service import FakeServer, delta, endless, fail, finished, start_server, started, whole_answer


def test_a_stream_brings_chunks_and_then_everything(fake: FakeServer) -> None:
    with pagemill.Client(fake.address) as client:
        stream = client.generate("hi", max_tokens=3, temperature=0.0, stop="END")
        assert stream.started is None
        chunks = list(stream)
    assert [(c.text, c.token_ids, c.position) for c in chunks] == [("Hello", (1,), 0), (", world", (2, 3), 1)]
    assert stream.text == "Hello, world"
    assert stream.token_ids == (1, 2, 3)
    assert stream.started is not None
    assert stream.started.seed == 2**64 - 1
    assert stream.replicas == ("replica-0",)
    assert stream.finished is not None
    assert stream.finished.reason is pagemill.FinishReason.STOP_STRING
    assert stream.finished.matched_string == "END"
    assert stream.finished.timing.prefill == 0.25
    assert stream.usage == pagemill.Usage(5, 2, 3)
    (request,) = fake.requests
    assert request.text == "hi"
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")
    assert list(request.stop.strings) == ["END"]


async def test_the_async_client_does_the_same(fake: FakeServer) -> None:
    async with pagemill.AsyncClient(fake.address) as client:
        stream = client.generate(messages=[{"role": "user", "content": "hi"}])
        chunks = [chunk.text async for chunk in stream]
        answer = await client.generate_text(token_ids=[1, 2])
        tokens = await client.tokenize("ab")
        assert await client.detokenize([97, 98]) == "ab"
        assert [m.name for m in await client.models()] == ["tiny"]
        assert (await client.model("tiny")).max_context_tokens == 2048
        with pytest.raises(pagemill.ModelNotFound):
            await client.model("huge")
        assert (await client.replicas()).router == "router-0"
        assert (await client.cordon("replica-0", reason="test")).reason == "test"
        assert (await client.uncordon("replica-0")).state.name == "replica-0"
        assert (await client.explain("hi")).candidates[0].need_blocks == 4
    assert chunks == ["Hello", ", world"]
    assert stream.usage.completion_tokens == 3
    assert answer.text == "Hello, world"
    assert answer.usage == pagemill.Usage(5, 2, 3)
    assert list(tokens.token_ids) == [97, 98]
    assert fake.requests[0].chat.messages[0].content == "hi"
    assert list(fake.requests[1].token_ids.ids) == [1, 2]


def test_unary_and_admin_calls(fake: FakeServer) -> None:
    with pagemill.Client(fake.address) as client:
        answer = client.generate_text("hi")
        assert list(client.tokenize(messages=[{"role": "user", "content": "x"}]).pieces) == list("<user>x")
        assert client.detokenize([104, 105]) == "hi"
        assert client.model().name == "tiny"
        assert client.replicas().policy == "least_loaded"
        assert client.cordon("replica-0", reason="disk").reason == "disk"
        assert client.uncordon("replica-0").state.name == "replica-0"
        assert client.explain("hi", max_tokens=4).expected_output_tokens == 16
    assert answer.text == "Hello, world"
    assert answer.token_ids == (1, 2, 3)
    assert answer.finished.matched_string == "END"


def test_calls_say_who_calls_and_carry_metadata(fake: FakeServer) -> None:
    with pagemill.Client(fake.address, metadata=[("x-team", "search")]) as client:
        list(client.generate("hi"))
    (metadata,) = fake.metadata
    assert metadata["user-agent"].startswith("pagemill-python/")
    assert metadata["x-team"] == "search"


# Retries.


def failing_first(times: int, error: errors.StatusError) -> tuple[list[int], object]:
    calls: list[int] = []

    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        calls.append(1)
        if len(calls) <= times:
            fail(error, context)
        yield from whole_answer(request, context)

    return calls, behave


def test_unavailable_is_retried_before_the_first_message(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(2, errors.draining(0.01))
    with pagemill.Client(fake.address) as client:
        assert "".join(c.text for c in client.generate("hi")) == "Hello, world"
    assert len(calls) == 3
    assert [m.get("grpc-previous-rpc-attempts") for m in fake.metadata] == [None, "1", "2"]


async def test_the_async_client_retries_too(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(2, errors.draining(0.01))
    async with pagemill.AsyncClient(fake.address) as client:
        assert "".join([c.text async for c in client.generate("hi")]) == "Hello, world"
    assert len(calls) == 3


def test_all_tries_of_a_call_share_one_id(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(2, errors.draining(0.01))
    with pagemill.Client(fake.address) as client:
        list(client.generate("hi"))
        list(client.generate("hi"))
        list(client.generate("hi", request_id="mine"))
        client.generate_text("hi")
    assert len(calls) == 5
    first, second, third, other, mine, unary = (r.request_id for r in fake.requests)
    assert first == second == third
    assert len({first, other, mine, unary, ""}) == 5
    assert mine == "mine"


async def test_the_async_client_draws_ids_from_its_source(fake: FakeServer) -> None:
    async with pagemill.AsyncClient(fake.address, random_bytes=lambda size: b"\x22" * size) as client:
        await client.generate_text("hi")
        async for _ in client.generate("hi"):
            pass
    assert [r.request_id for r in fake.requests] == ["2222222222224222a222222222222222"] * 2


def test_at_most_two_retries(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(9, errors.draining(0.01))
    with pagemill.Client(fake.address) as client, pytest.raises(pagemill.Unavailable):
        list(client.generate("hi"))
    assert len(calls) == 3


@pytest.mark.parametrize(
    "error",
    [errors.queue_full(0.01, "full"), errors.internal("x"), errors.deadline("queue"), errors.draining(None)],
    ids=["queue full", "internal", "deadline", "unavailable and told not to"],
)
def test_nothing_else_is_retried(fake: FakeServer, error: errors.StatusError) -> None:
    calls, fake.generate = failing_first(9, error)
    with pagemill.Client(fake.address) as client, pytest.raises(pagemill.PagemillError):
        list(client.generate("hi"))
    assert len(calls) == 1


def test_nothing_is_retried_after_the_first_message(fake: FakeServer) -> None:
    calls: list[int] = []

    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        calls.append(1)
        yield started()
        yield delta("Hel", 1)
        fail(errors.draining(0.01), context)

    fake.generate = behave
    with pagemill.Client(fake.address) as client, pytest.raises(pagemill.Unavailable):
        list(client.generate("hi"))
    assert len(calls) == 1


def test_retries_can_be_switched_off(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(1, errors.draining(0.01))
    with pagemill.Client(fake.address, max_attempts=1) as client, pytest.raises(pagemill.Unavailable):
        list(client.generate("hi"))
    assert len(calls) == 1


def test_a_large_prompt_is_retried_too(fake: FakeServer) -> None:
    calls, fake.generate = failing_first(1, errors.draining(0.01))
    with pagemill.Client(fake.address) as client:
        assert list(client.generate(token_ids=[70000] * 400_000))
    assert len(calls) == 2


# Several servers.


@pytest.fixture
def other() -> Iterator[FakeServer]:
    fake = FakeServer()
    server = start_server(fake)
    yield fake
    server.stop(grace=None).wait()


def test_calls_go_round_servers(fake: FakeServer, other: FakeServer) -> None:
    with pagemill.Client(f"{fake.address},{other.address}") as client:
        # Both connections must stand before turns can be counted.
        deadline = time.monotonic() + 30
        while not (fake.requests and other.requests):
            assert time.monotonic() < deadline
            list(client.generate("hi"))
        before = len(fake.requests), len(other.requests)
        for _ in range(6):
            list(client.generate("hi"))
    assert (len(fake.requests) - before[0], len(other.requests) - before[1]) == (3, 3)


def test_an_unhealthy_server_gets_nothing(fake: FakeServer, other: FakeServer) -> None:
    other.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pagemill.Client(f"{fake.address},{other.address}") as client:
        for _ in range(6):
            list(client.generate("hi"))
    assert len(fake.requests) == 6
    assert other.requests == []


# Servers that are not ready.


def test_a_server_that_is_not_ready_answers_all_but_requests_for_output(fake: FakeServer) -> None:
    fake.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    with pagemill.Client(fake.address) as client:
        assert client.replicas().router == "router-0"
        assert client.cordon("replica-0").state.name == "replica-0"
        assert client.explain("hi").policy == "least_loaded"
        assert [m.name for m in client.models()] == ["tiny"]
        assert client.model().name == "tiny"
        assert list(client.tokenize("ab").token_ids) == [97, 98]
        assert client.detokenize([97]) == "a"
        with pytest.raises(pagemill.NotReady, match="is up, but not ready"):
            list(client.generate("hi"))
        with pytest.raises(pagemill.NotReady):
            client.generate_text("hi")
    assert [r.text for r in fake.requests] == ["hi"], "only the request to explain"


async def test_the_async_client_asks_a_server_that_is_not_ready_too(fake: FakeServer) -> None:
    fake.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    async with pagemill.AsyncClient(fake.address) as client:
        assert (await client.replicas()).router == "router-0"
        assert [m.name for m in await client.models()] == ["tiny"]
        assert (await client.model()).name == "tiny"
        assert list((await client.tokenize("ab")).token_ids) == [97, 98]
        assert await client.detokenize([97]) == "a"
        with pytest.raises(pagemill.NotReady):
            async for _ in client.generate("hi"):
                pass
        with pytest.raises(pagemill.NotReady):
            await client.generate_text("hi")


# Timeouts.


def test_the_timeout_rides_along_and_the_deadline_is_later(fake: FakeServer) -> None:
    with pagemill.Client(fake.address, timeout=60) as client:
        list(client.generate("hi", timeout=20))
        list(client.generate("hi"))
        client.generate_text("hi", timeout=1.5)
    assert [r.timeout.ToNanoseconds() / 1e9 for r in fake.requests] == [20, 60, 1.5]
    for remaining, timeout in zip(fake.remaining, (20, 60, 1.5), strict=True):
        assert remaining is not None
        # What goes over the wire is rounded up to three digits.
        assert 0 < remaining <= timeout + 0.5


def test_no_timeout_sets_no_deadline(fake: FakeServer) -> None:
    with pagemill.Client(fake.address) as client:
        list(client.generate("hi"))
    assert not fake.requests[0].HasField("timeout")
    # gRPC reports no deadline as one in the far future.
    assert fake.remaining[0] is None or fake.remaining[0] > 1e6


def test_a_server_that_overruns_meets_the_deadline(fake: FakeServer) -> None:
    fake.generate = endless
    with pagemill.Client(fake.address) as client, pytest.raises(pagemill.DeadlineExceeded) as caught:
        list(client.generate("hi", timeout=0.2))
    assert caught.value.stage is None
    assert fake.ended.wait(10)


# Cancelling.


def test_leaving_the_with_block_cancels(fake: FakeServer) -> None:
    fake.generate = endless
    with pagemill.Client(fake.address) as client:
        with client.generate("hi") as stream:
            assert next(stream).text == "on and on"
        assert fake.ended.wait(10)
        assert stream.cancelled
        assert list(stream) == []


def test_closing_the_stream_cancels(fake: FakeServer) -> None:
    fake.generate = endless
    with pagemill.Client(fake.address) as client:
        stream = client.generate("hi")
        next(stream)
        stream.close()
        assert fake.ended.wait(10)


def test_breaking_out_of_the_loop_cancels(fake: FakeServer) -> None:
    fake.generate = endless
    with pagemill.Client(fake.address) as client:
        for _ in client.generate("hi"):
            break
        gc.collect()
        assert fake.ended.wait(10)


def test_cancel_from_another_thread_ends_the_iteration(fake: FakeServer) -> None:
    fake.generate = endless
    with pagemill.Client(fake.address) as client:
        stream = client.generate("hi")
        next(stream)
        threading.Timer(0.05, stream.cancel).start()
        assert list(stream) == []
        assert stream.text == "on and on"
        assert fake.ended.wait(10)


def test_cancel_after_the_end_changes_nothing(fake: FakeServer) -> None:
    with pagemill.Client(fake.address) as client:
        stream = client.generate("hi")
        list(stream)
        stream.cancel()
        stream.close()
    assert not stream.cancelled
    assert stream.finished is not None


async def test_async_leaving_the_block_cancels(fake: FakeServer) -> None:
    fake.generate = endless
    async with pagemill.AsyncClient(fake.address) as client:
        async with client.generate("hi") as stream:
            assert (await anext(stream)).text == "on and on"
        assert await asyncio.to_thread(fake.ended.wait, 10)
        assert stream.cancelled
        assert [c async for c in stream] == []


async def test_async_dropping_the_stream_cancels(fake: FakeServer) -> None:
    fake.generate = endless
    async with pagemill.AsyncClient(fake.address) as client:
        async for _ in client.generate("hi"):
            break
        gc.collect()
        assert await asyncio.to_thread(fake.ended.wait, 10)


async def test_cancelling_the_task_cancels_the_call_and_stays_a_cancellation(fake: FakeServer) -> None:
    fake.generate = endless
    arrived = asyncio.Event()

    async def read(client: pagemill.AsyncClient) -> None:
        async for _ in client.generate("hi"):
            arrived.set()

    async with pagemill.AsyncClient(fake.address) as client:
        task = asyncio.create_task(read(client))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(fake.ended.wait, 10)


async def test_async_cancel_from_another_task_ends_the_iteration(fake: FakeServer) -> None:
    fake.generate = endless
    async with pagemill.AsyncClient(fake.address) as client:
        stream = client.generate("hi")
        seen = []
        async for chunk in stream:
            seen.append(chunk.text)
            asyncio.get_running_loop().call_later(0.05, stream.cancel)
        assert seen == ["on and on"]
        assert stream.cancelled


async def test_an_asyncio_timeout_around_the_unary_call_cancels_it(fake: FakeServer) -> None:
    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> pb.GenerateTextResponse:
        list(endless(request, context))
        return pb.GenerateTextResponse()

    fake.text = behave
    async with pagemill.AsyncClient(fake.address) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.generate_text("hi")
        assert await asyncio.to_thread(fake.ended.wait, 10)


# Threads.


def test_one_client_serves_many_threads(fake: FakeServer) -> None:
    def echo(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        for position, character in enumerate(request.text):
            yield delta(character, ord(character), position=position)
        yield finished(len(request.text))

    fake.generate = echo
    with pagemill.Client(fake.address) as client, ThreadPoolExecutor(8) as pool:
        prompts = [f"prompt number {i}" for i in range(64)]
        answers = pool.map(lambda prompt: "".join(c.text for c in client.generate(prompt)), prompts)
        assert list(answers) == prompts
