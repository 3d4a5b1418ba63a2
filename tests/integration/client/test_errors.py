"""Every row of the error table reaches the caller as its own exception, streaming and unary, blocking and asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import pagemill
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from pagemill_common.errors import StatusError
from support.fake_service import FakeServer, delta, fail, started

CODE = grpc.StatusCode

ROWS: list[tuple[StatusError, type[pagemill.PagemillError], CODE, dict[str, Any]]] = [
    (
        errors.bad_fields([("sampling.top_p", "must be in (0, 1], got 2"), ("stop.max_tokens", "must be at least 1")]),
        pagemill.InvalidRequest,
        CODE.INVALID_ARGUMENT,
        {
            "violations": (
                pagemill.Violation("sampling.top_p", "must be in (0, 1], got 2"),
                pagemill.Violation("stop.max_tokens", "must be at least 1"),
            )
        },
    ),
    (
        errors.out_of_range("input", "9000 tokens exceed the context of 8192"),
        pagemill.TooLong,
        CODE.OUT_OF_RANGE,
        {"reason": "TOO_LONG", "violations": (pagemill.Violation("input", "9000 tokens exceed the context of 8192"),)},
    ),
    (
        errors.unimplemented("n"),
        pagemill.NotSupported,
        CODE.UNIMPLEMENTED,
        {"reason": "FIELD_NOT_SUPPORTED", "field": "n"},
    ),
    (
        errors.model_not_found("huge", ["tiny"]),
        pagemill.ModelNotFound,
        CODE.NOT_FOUND,
        {"resource": "huge", "reason": "MODEL_NOT_FOUND"},
    ),
    (errors.already_exists("mine"), pagemill.AlreadyExists, CODE.ALREADY_EXISTS, {"request_id": "mine"}),
    (errors.unauthenticated("who are you"), pagemill.Unauthenticated, CODE.UNAUTHENTICATED, {}),
    (errors.permission_denied("not you"), pagemill.PermissionDenied, CODE.PERMISSION_DENIED, {}),
    (
        errors.quota_exceeded("team-a", "100 tokens a minute", 30.0),
        pagemill.QuotaExceeded,
        CODE.RESOURCE_EXHAUSTED,
        {"retry_after": 30.0, "violations": (pagemill.Violation("team-a", "100 tokens a minute"),)},
    ),
    (
        errors.queue_full(2.5, "the queue is full"),
        pagemill.QueueFull,
        CODE.RESOURCE_EXHAUSTED,
        {"reason": "QUEUE_FULL", "retry_after": 2.5},
    ),
    (errors.replica_full(0.5, "no room"), pagemill.Exhausted, CODE.RESOURCE_EXHAUSTED, {"reason": "REPLICA_FULL"}),
    (
        errors.no_replica(1.5, "no ready replica"),
        pagemill.Unavailable,
        CODE.UNAVAILABLE,
        {"reason": "NO_REPLICA", "retry_after": 1.5},
    ),
    (errors.draining(None), pagemill.Unavailable, CODE.UNAVAILABLE, {"reason": "DRAINING", "retry_after": None}),
    (
        errors.replica_lost([17, 4], "the replica is gone"),
        pagemill.ReplicaLost,
        CODE.UNAVAILABLE,
        {"reason": "PARTIAL_OUTPUT", "tokens_per_choice": (17, 4), "retry_after": None},
    ),
    (
        errors.deadline("prefill"),
        pagemill.DeadlineExceeded,
        CODE.DEADLINE_EXCEEDED,
        {"stage": "prefill", "reason": "DEADLINE_EXCEEDED"},
    ),
    (errors.internal("abc123"), pagemill.InternalError, CODE.INTERNAL, {"incident": "abc123"}),
    (errors.superseded(2), pagemill.PagemillError, CODE.ABORTED, {"reason": "SUPERSEDED"}),
]
IDS = [f"{code.name}-{row.reason}" for row, _, code, _ in ROWS]


def check(error: pagemill.PagemillError, kind: type, code: CODE, attributes: dict[str, Any], message: str) -> None:
    assert type(error) is kind
    assert error.code is code
    assert message in str(error)
    assert {name: getattr(error, name) for name in attributes} == attributes


@pytest.mark.parametrize(("row", "kind", "code", "attributes"), ROWS, ids=IDS)
async def test_every_row_becomes_its_exception(
    fake: FakeServer, row: StatusError, kind: type, code: CODE, attributes: dict[str, Any]
) -> None:
    fake.generate = lambda request, context: fail(row, context)
    fake.text = lambda request, context: fail(row, context)
    with pagemill.Client(fake.address, max_attempts=1) as client:
        with pytest.raises(pagemill.PagemillError) as streamed:
            list(client.generate("hi"))
        with pytest.raises(pagemill.PagemillError) as unary:
            client.generate_text("hi")
    async with pagemill.AsyncClient(fake.address, max_attempts=1) as client:
        with pytest.raises(pagemill.PagemillError) as async_streamed:
            async for _ in client.generate("hi"):
                pass
        with pytest.raises(pagemill.PagemillError) as async_unary:
            await client.generate_text("hi")
    for caught in (streamed, unary, async_streamed, async_unary):
        check(caught.value, kind, code, attributes, row.message)


def test_chunks_before_an_error_stay(fake: FakeServer) -> None:
    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        yield delta("Hel", 1)
        fail(errors.replica_lost([1], "gone"), context)

    fake.generate = behave
    seen = []
    with pagemill.Client(fake.address) as client:
        stream = client.generate("hi")
        with pytest.raises(pagemill.ReplicaLost) as caught:
            seen.extend(chunk.text for chunk in stream)
    assert seen == ["Hel"] or stream.text == "Hel"
    assert caught.value.tokens_per_choice == (1,)
    assert stream.finished is None
    assert list(stream) == []


def test_a_stream_that_ends_without_an_end_is_an_error(fake: FakeServer) -> None:
    fake.generate = lambda request, context: iter([started(), delta("Hel", 1)])
    with pagemill.Client(fake.address) as client, pytest.raises(pagemill.InternalError, match="without saying"):
        list(client.generate("hi"))


def test_a_missing_server_is_named() -> None:
    with pagemill.Client("127.0.0.1:1") as client, pytest.raises(pagemill.Unavailable, match=r"127\.0\.0\.1:1"):
        client.models()


def test_a_missing_service_is_not_supported(fake: FakeServer) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pagemill.Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(pagemill.NotSupported, match="only routers answer it") as caught:
            client.replicas()
        with pytest.raises(pagemill.NotSupported) as other:
            client.models()
    server.stop(None).wait()
    assert caught.value.field is None
    assert "routers" not in str(other.value)


def test_values_that_do_not_fit_never_leave(fake: FakeServer) -> None:
    with pagemill.Client(fake.address) as client:
        with pytest.raises(pagemill.InvalidRequest) as caught:
            client.generate("hi", top_k=-1, max_tokens=2**40, timeout=0)
        with pytest.raises(pagemill.InvalidRequest):
            client.models(timeout=-1)
    assert [v.field for v in caught.value.violations] == ["sampling.top_k", "stop.max_tokens", "timeout"]
    assert fake.requests == []
