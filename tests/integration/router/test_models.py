"""Models that come, change their names and go."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import pytest
from integration.router.conftest import Caller, RunRouter, question

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import model_pb2
from pagemill_router.fleet.link import ReplicaLink
from pagemill_router.fleet.models import FORGET_SECONDS, ModelBook
from pagemill_router.fleet.sends import Sends
from support.fake_replica import FakeReplica, text_of, until


def called(name: str, model_id: str = "a" * 64) -> model_pb2.Model:
    model = FakeReplica().model
    model.name, model.model_id = name, model_id
    return model


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def book_of(clock: Clock) -> AsyncIterator[ModelBook]:
    with ThreadPoolExecutor(1) as executor:
        yield ModelBook(executor, clock)


@asynccontextmanager
async def link_to(replica: FakeReplica, book: ModelBook) -> AsyncIterator[ReplicaLink]:
    """A link that nobody runs: the test says what it hears."""
    link = ReplicaLink(
        replica.address, "r", book, Sends(), {}, clock=Clock(), rng=random.Random(1), changed=lambda roomier: None
    )
    yield link
    await link.channel.close()


def names(book: ModelBook) -> list[str]:
    return [served.model.name for served in book.all()]


async def test_a_model_is_known_for_a_while_after_its_last_replica_has_gone() -> None:
    clock = Clock()
    async with FakeReplica() as replica, book_of(clock) as book, link_to(replica, book) as link:
        assert await book.admit(link, replica.state()) == ""
        clock.now = 1000.0
        assert names(book) == ["tiny"]
        book.forget(link)
        clock.now += FORGET_SECONDS - 1
        assert names(book) == ["tiny"]
        assert await book.admit(link, replica.state()) == ""
        assert replica.tokenizer_calls["whole"] == 1, "one that restarts costs no second tokenizer"
        book.forget(link)
        clock.now += FORGET_SECONDS
        assert (names(book), len(book), book.get("tiny")) == ([], 0, None)
        assert not book._tokenizers
        assert await book.admit(link, replica.state()) == ""
        assert (names(book), replica.tokenizer_calls["whole"]) == (["tiny"], 2)


async def test_a_model_whose_replica_is_only_lost_stays_known() -> None:
    clock = Clock()
    async with FakeReplica() as replica, book_of(clock) as book, link_to(replica, book) as link:
        await book.admit(link, replica.state())
        book.leave(link)
        clock.now += 100 * FORGET_SECONDS
        assert names(book) == ["tiny"]


async def test_a_model_is_forgotten_once_its_replica_serves_another() -> None:
    clock = Clock()
    async with FakeReplica() as replica, book_of(clock) as book, link_to(replica, book) as link:
        await book.admit(link, replica.state())
        replica.model = called("other")
        assert await book.admit(link, replica.state()) == ""
        assert names(book) == ["other", "tiny"]
        assert [served.model.name for served in book.meant_by("")] == ["other"]
        assert [served.model.name for served in book.meant_by("tiny")] == ["other", "tiny"]
        clock.now += FORGET_SECONDS
        assert names(book) == ["other"]
        assert len(book._tokenizers) == 1, "the one that the other model uses"


async def test_without_any_replica_a_call_may_mean_each_model() -> None:
    async with FakeReplica() as replica, book_of(Clock()) as book, link_to(replica, book) as link:
        await book.admit(link, replica.state())
        book.leave(link)
        assert [served.model.name for served in book.meant_by("")] == ["tiny"]


async def test_many_models_after_each_other_leave_nothing_behind() -> None:
    clock = Clock()
    async with FakeReplica() as replica, book_of(clock) as book, link_to(replica, book) as link:
        for number in range(5):
            replica.model = called(f"m{number}", f"{number}" * 64)
            assert await book.admit(link, replica.state()) == ""
            clock.now += FORGET_SECONDS
            assert names(book) == [f"m{number}"]
        assert len(book._models) == len(book._tokenizers) == 1


async def rename(caller: Caller, replica: FakeReplica, name: str) -> None:
    replica.model = called(name)
    replica.tell()
    await until(lambda: bool(caller.router.fleet.snapshot().ready(name)), 20.0)


async def test_calls_without_a_name_go_on_when_the_model_is_renamed(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica, no_replica_grace=0.1) as caller:
        await caller.ask(question())
        await rename(caller, replica, "other")
        heard = await caller.ask(question(max_tokens=3))
        assert (heard.error, heard.text) == (None, text_of(3))
        tokens = await caller.generation.Tokenize(pb.TokenizeRequest(text="x"))
        assert tokens.model == "other"
        old = await caller.ask(question(model="tiny"))
        assert old.error is not None
        assert old.error.code() is grpc.StatusCode.UNAVAILABLE, "it may be back"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await caller.generation.GetModel(pb.GetModelRequest(model="tiny"))
        assert failure.value.details() == "no model is called 'tiny'; served: other"
