"""The error table of the contract, row by row: what a caller of the client library gets from real processes.

Two rows have no product code yet, "no identity / not allowed" and "tenant quota". That the client understands their
statuses is held by tests/integration/client/test_errors.py, against a server that answers with whatever it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio

import pagemill
from pagemill_common.capacity.server import RedisServer
from support.cut import Cut
from support.fleet import Fleet, Tier, fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.redis]

CODE = grpc.StatusCode
FAILS = 1234
"""A prompt with this token makes the engine's step fail."""
EXITS = 1235
"""A prompt with this token kills the engine."""
SCRIPT = f"vocab=49152,low=2000,context=2048,token_delay=0.001,fail_id={FAILS},exit_id={EXITS}"

ROUTER_FLAGS = ("--expected-output", "full", "--no-replica-grace", "0.5s", "--drain-settle", "0")


@dataclass
class Table:
    """What most rows share; none of them may harm it."""

    fleet: Fleet
    router: Tier
    other_router: Tier
    replica: Tier


@pytest.fixture(scope="module")
def valkey() -> Iterator[RedisServer]:
    with RedisServer("valkey") as running:
        yield running


@contextlib.asynccontextmanager
async def one_of_each(url: str, script: str, *router_flags: str) -> AsyncIterator[tuple[Fleet, Tier, Tier]]:
    """A replica of 10 ms a step and a router that knows it, in a pool of their own."""
    async with fleet(url, uuid.uuid4().hex) as made:
        flags = ["--model-name", "smollm2", "--fake-runner", f"{SCRIPT},{script}", "--drain-settle", "0"]
        replica = made.replica("replica", *flags)
        router = made.router("router", *ROUTER_FLAGS, *router_flags)
        await made.ready()
        yield made, router, replica


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def table(valkey: RedisServer) -> AsyncIterator[Table]:
    # 1024 tokens in the pool, 2048 in the context.
    async with one_of_each(valkey.url, "delay=0.01,blocks=64") as (made, router, replica):
        other = made.router("other-router", *ROUTER_FLAGS)
        await other.ready()
        yield Table(made, router, other, replica)


def client(tier: Tier, **options: Any) -> pagemill.AsyncClient:
    """A client that does not try again, so that the first status is seen."""
    return pagemill.AsyncClient(tier.address, **{"max_attempts": 1, "timeout": 60, **options})


def details(error: pagemill.PagemillError) -> list[str]:
    return sorted(type(detail).__name__ for detail in error.details)


def row(error: pagemill.PagemillError) -> tuple[type, CODE, str | None, list[str]]:
    return type(error), error.code, error.reason, details(error)


async def refusals(tier: Tier, prompt: str | None = "hello", **options: Any) -> list[pagemill.PagemillError]:
    """How a request fails with each of the client's four ways to ask, nothing having come before."""
    return [
        *await asyncio.to_thread(_blocking_refusals, tier, prompt, options),
        *await _refusals(tier, prompt, options),
    ]


def _blocking_refusals(tier: Tier, prompt: str | None, options: dict[str, Any]) -> list[pagemill.PagemillError]:
    with pagemill.Client(tier.address, max_attempts=1, timeout=60) as blocking:
        stream = blocking.generate(prompt, **options)
        with pytest.raises(pagemill.PagemillError) as streamed:
            list(stream)
        assert stream.started is None
        with pytest.raises(pagemill.PagemillError) as unary:
            blocking.generate_text(prompt, **options)
    return [streamed.value, unary.value]


async def _refusals(tier: Tier, prompt: str | None, options: dict[str, Any]) -> list[pagemill.PagemillError]:
    async with client(tier) as asking:
        stream = asking.generate(prompt, **options)
        streamed = await failure(stream)
        assert stream.started is None
        with pytest.raises(pagemill.PagemillError) as unary:
            await asking.generate_text(prompt, **options)
    return [streamed, unary.value]


async def failure(stream: pagemill.AsyncGenerateStream) -> pagemill.PagemillError:
    """Reads a stream that must fail to its end."""
    with pytest.raises(pagemill.PagemillError) as caught:
        async for _ in stream:
            pass
    return caught.value


async def streaming(asking: pagemill.AsyncClient, **options: Any) -> pagemill.AsyncGenerateStream:
    """A stream some tokens of which have come."""
    stream = asking.generate("tell me", ignore_end_of_text=True, **options)
    while len(stream.token_ids) < 5:
        await anext(stream)
    return stream


def log_lines(tier: Tier) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tier.log.splitlines() if line.startswith("{")]


async def test_bad_fields_are_named_all_at_once(table: Table) -> None:
    wrong = {"temperature": -1.0, "top_p": 2.0, "max_tokens": 0, "stop": ["x"] * 17}
    for error in await refusals(table.router, **wrong):
        assert row(error) == (
            pagemill.InvalidRequest,
            CODE.INVALID_ARGUMENT,
            "INVALID_FIELD",
            ["BadRequest", "ErrorInfo"],
        )
        assert isinstance(error, pagemill.InvalidRequest)
        fields = {violation.field for violation in error.violations}
        assert fields == {"sampling.temperature", "sampling.top_p", "stop.max_tokens", "stop.strings"}
        assert all(violation.description for violation in error.violations)
        assert error.retry_after is None


@pytest.mark.parametrize(
    ("ids", "max_tokens"),
    [(2040, 9), (2100, 1), (24, 1001)],
    ids=["past the context", "prompt past the context", "within the context, past the pool"],
)
async def test_what_can_never_fit_is_refused_at_once(table: Table, ids: int, max_tokens: int) -> None:
    for error in await refusals(table.router, None, token_ids=[5] * ids, max_tokens=max_tokens):
        assert row(error) == (pagemill.TooLong, CODE.OUT_OF_RANGE, "TOO_LONG", ["BadRequest", "ErrorInfo"])
        assert isinstance(error, pagemill.TooLong)
        assert len(error.violations) == 1
        assert error.violations[0].field
        assert error.retry_after is None


async def test_what_fits_to_the_token_is_taken(table: Table) -> None:
    async with client(table.router) as asking:
        answer = await asking.generate_text(token_ids=[5] * 1020, max_tokens=4, ignore_end_of_text=True)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1020, 4)


async def test_an_unknown_model_is_not_found(table: Table) -> None:
    for error in await refusals(table.router, model="nobody"):
        assert row(error) == (
            pagemill.ModelNotFound,
            CODE.NOT_FOUND,
            "MODEL_NOT_FOUND",
            ["ErrorInfo", "ResourceInfo"],
        )
        assert isinstance(error, pagemill.ModelNotFound)
        assert error.resource == "nobody"
        assert "smollm2" in str(error), "what is served is named"
        assert error.retry_after is None


async def test_an_adapter_is_refused_by_its_field_as_long_as_there_are_none(table: Table) -> None:
    for error in await refusals(table.router, adapter="pirate"):
        assert row(error)[:3] == (pagemill.NotSupported, CODE.UNIMPLEMENTED, "FIELD_NOT_SUPPORTED")
        assert isinstance(error, pagemill.NotSupported)
        assert error.field == "adapter"


async def test_a_live_request_id_is_refused_on_its_router_and_the_first_is_untouched(table: Table) -> None:
    async with client(table.router) as asking:
        first = await streaming(asking, request_id="mine", max_tokens=150)
        for error in await refusals(table.router, request_id="mine"):
            assert row(error) == (
                pagemill.AlreadyExists,
                CODE.ALREADY_EXISTS,
                "DUPLICATE_REQUEST_ID",
                ["ErrorInfo", "ResourceInfo"],
            )
            assert isinstance(error, pagemill.AlreadyExists)
            assert error.request_id == "mine"
            assert error.retry_after is None
        async with client(table.other_router) as elsewhere:
            await elsewhere.generate_text("hi", request_id="mine", max_tokens=2)
        assert first.finished is None, "the first was still live"
        async for _ in first:
            pass
        assert len(first.token_ids) == 150
        await asking.generate_text("hi", request_id="mine", max_tokens=2)


async def test_grpcs_own_retry_is_no_second_use_of_an_id(table: Table) -> None:
    async with Cut(table.router.address) as cut:
        async with pagemill.AsyncClient(cut.address, timeout=60) as asking:
            # Its prefill takes 0.9 s: the connection breaks while nothing has been sent, unheard by the router.
            asked = asyncio.create_task(
                asking.generate_text(token_ids=[7] * 900, request_id="retried", max_tokens=2, ignore_end_of_text=True)
            )
            await until(lambda: sent(table), 10, "the first attempt is with the replica")
            cut.break_off()
            answer = await asked
        assert answer.started is not None
        assert answer.started.request_id == "retried"
        assert cut.connections > 1
    await until(lambda: len(calls(table.router, "retried")) == 2, 10, "both attempts were calls of their own")


def calls(tier: Tier, request_id: str) -> list[dict[str, Any]]:
    """The log lines of the calls with this id that have ended."""
    lines = log_lines(tier)
    return [one for one in lines if one.get("request_id") == request_id and one["message"] == "request finished"]


async def sent(table: Table) -> bool:
    async with client(table.router) as asking:
        return any(one.open_streams for one in (await asking.replicas()).replicas)


async def test_a_full_queue_and_a_hopeless_wait_say_when_to_come_back(valkey: RedisServer) -> None:
    # 64 tokens in the pool: one of these runs at a time, a fifth of a second each.
    async with (
        one_of_each(valkey.url, "delay=0.005,blocks=4", "--queue-limit", "20") as (_, router, _),
        client(router) as asking,
    ):

        def one() -> asyncio.Task[pagemill.Answer]:
            return asyncio.create_task(asking.generate_text(token_ids=[5] * 8, max_tokens=40, ignore_end_of_text=True))

        waiting = [one() for _ in range(21)]
        await until(lambda: queued(asking, 20), 10, "the queue is full")
        with pytest.raises(pagemill.PagemillError) as full:
            await asking.generate_text("me too", max_tokens=40)
        await until(lambda: sum(task.done() for task in waiting) >= 10, 20, "the queue has a pace")
        with pytest.raises(pagemill.PagemillError) as hopeless:
            await asking.generate_text("in a hurry", max_tokens=40, timeout=0.1)
        for error in (full.value, hopeless.value):
            assert row(error) == (
                pagemill.QueueFull,
                CODE.RESOURCE_EXHAUSTED,
                "QUEUE_FULL",
                ["ErrorInfo", "RetryInfo"],
            )
            assert error.retry_after is not None
            assert error.retry_after > 0
        assert "longer than the time left" in str(hopeless.value)
        assert all(answer.text for answer in await asyncio.gather(*waiting)), "those in the queue were served"


async def queued(asking: pagemill.AsyncClient, count: int) -> bool:
    return (await asking.replicas()).queued == count


@pytest.mark.parametrize("which", ["front", "engine"])
async def test_a_replica_lost_after_a_token_counts_them_and_then_none_is_ready(valkey: RedisServer, which: str) -> None:
    async with one_of_each(valkey.url, "delay=0.01,blocks=64") as (_, router, replica), client(router) as asking:
        stream = await streaming(asking, max_tokens=900)
        assert replica.process is not None
        os.kill(replica.process.pid if which == "front" else replica.status["engine_pid"], signal.SIGKILL)
        error = await failure(stream)
        assert row(error) == (
            pagemill.ReplicaLost,
            CODE.UNAVAILABLE,
            "PARTIAL_OUTPUT",
            ["ErrorInfo", "PartialOutput"],
        )
        assert isinstance(error, pagemill.ReplicaLost)
        assert error.tokens_per_choice == (len(stream.token_ids),)
        assert stream.token_ids
        assert error.retry_after is None, "a blind retry would repeat what the caller has"
        await replica.ended()
        for none in await refusals(router):
            assert row(none) == (pagemill.Unavailable, CODE.UNAVAILABLE, "NO_REPLICA", ["ErrorInfo", "RetryInfo"])
            assert none.retry_after == 1.0


async def test_an_engine_that_dies_before_a_token_is_safe_to_retry(valkey: RedisServer) -> None:
    async with one_of_each(valkey.url, "delay=0.01,blocks=64") as (_, router, _), client(router) as asking:
        stream = asking.generate(token_ids=[5, EXITS], max_tokens=4)
        error = await failure(stream)
        assert stream.started is None
        # By the time it is told there is either no replica at all, or none that has not failed the call.
        assert isinstance(error, pagemill.Unavailable)
        assert (error.code, details(error)) == (CODE.UNAVAILABLE, ["ErrorInfo", "RetryInfo"])
        assert error.reason in ("NO_REPLICA", "REPLICA_LOST")
        assert error.retry_after is not None
        assert error.retry_after > 0


async def test_a_draining_replica_closes_its_stragglers_and_takes_nobody(valkey: RedisServer) -> None:
    async with fleet(valkey.url, uuid.uuid4().hex) as made:
        flags = ["--model-name", "smollm2", "--fake-runner", f"{SCRIPT},delay=0.02,blocks=640", "--drain-settle", "0"]
        drain = ["--max-stream-seconds", "8", "--default-timeout", "8", "--drain-margin", "6"]
        replica = made.replica("replica", *flags, *drain)
        await made.ready()
        # Straight to the replica: a router would place the call elsewhere.
        async with client(replica, timeout=8) as asking:
            stream = await streaming(asking, max_tokens=2000)
            replica.send(signal.SIGTERM)
            error = await failure(stream)
            assert row(error) == (pagemill.Unavailable, CODE.UNAVAILABLE, "DRAINING", ["ErrorInfo", "RetryInfo"])
            assert error.retry_after is not None
            assert await replica.ended() == 0


async def test_a_timeout_names_where_it_passed(table: Table) -> None:
    async with client(table.router) as asking:
        prefill = await failure(asking.generate(token_ids=[9] * 1000, max_tokens=2, timeout=0.3))
        stream = await streaming(asking, max_tokens=900, timeout=0.5)
        decode = await failure(stream)
        assert stream.token_ids
        hog = await streaming(asking, max_tokens=990)
        queue = await failure(asking.generate(token_ids=[8] * 500, max_tokens=8, timeout=0.3))
        hog.cancel()
    for error, stage in ((queue, "queue"), (prefill, "prefill"), (decode, "decode")):
        assert row(error) == (
            pagemill.DeadlineExceeded,
            CODE.DEADLINE_EXCEEDED,
            "DEADLINE_EXCEEDED",
            ["ErrorInfo"],
        )
        assert isinstance(error, pagemill.DeadlineExceeded)
        assert error.stage == stage
        assert error.retry_after is None


async def test_a_bug_is_an_incident_that_only_the_log_explains(table: Table) -> None:
    for error in await refusals(table.router, None, token_ids=[5, FAILS], max_tokens=4):
        assert row(error) == (pagemill.InternalError, CODE.INTERNAL, "INTERNAL", ["ErrorInfo"])
        assert isinstance(error, pagemill.InternalError)
        assert error.incident
        assert error.incident in str(error)
        (line,) = [line for line in log_lines(table.replica) if error.incident in json.dumps(line)]
        assert "the script says to fail" in json.dumps(line), "the log says what happened"
        told = str(error) + repr(error.details)
        for inner in ("script", "RuntimeError", "Traceback", ".py"):
            assert inner not in told
        assert error.retry_after is None
    async with client(table.router) as asking:
        assert (await asking.generate_text("hi", max_tokens=3)).text, "the replica goes on"
