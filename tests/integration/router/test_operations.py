"""What operators do, and what callers do wrong."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from grpc_status.rpc_status import from_call
from integration.router.conftest import RunRouter, question
from integration.router.test_retry import errors_of, reason_of

from pagemill.v1 import GenerationServiceStub, admin_pb2, internal_pb2
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from pagemill_common.block_hash import BlockHasher
from pagemill_common.capacity import CapacityPool
from pagemill_common.capacity.server import RedisServer
from pagemill_common.errors import Reason
from support.fake_replica import BLOCK, FakeReplica, failing, silent, text_of, until


async def test_a_cordoned_replica_gets_nothing_until_uncordon(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two, policy="round_robin") as caller:
        reply = await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r0", reason="bad disk"))
        assert reply.replica.standing == admin_pb2.REPLICA_STANDING_CORDONED
        for _ in range(4):
            assert (await caller.ask(question())).error is None
        assert (len(one.seen), len(two.seen)) == (0, 4)
        listed = await caller.admin.ListReplicas(admin_pb2.ListReplicasRequest())
        assert [(row.state.name, row.standing, row.reason) for row in listed.replicas] == [
            ("r0", admin_pb2.REPLICA_STANDING_CORDONED, "cordoned: bad disk"),
            ("r1", admin_pb2.REPLICA_STANDING_READY, ""),
        ]
        reply_back = await caller.admin.Uncordon(admin_pb2.UncordonRequest(replica="r0"))
        assert reply_back.replica.standing == admin_pb2.REPLICA_STANDING_READY
        for _ in range(2):
            await caller.ask(question())
        assert len(one.seen) == 1


async def test_a_cordon_without_a_reason_keeps_the_earlier_one(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as replica, run_router(replica) as caller:
        shown = []
        for reason in ("", "bad disk", "", "bad fan"):
            reply = await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r0", reason=reason))
            shown.append(reply.replica.reason)
        assert shown == ["cordoned", "cordoned: bad disk", "cordoned: bad disk", "cordoned: bad fan"]
        await caller.admin.Uncordon(admin_pb2.UncordonRequest(replica="r0"))
        reply = await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r0"))
        assert reply.replica.reason == "cordoned", "uncordon forgets it"


async def test_cordon_of_a_name_nobody_bears(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await caller.admin.Cordon(admin_pb2.CordonRequest(replica="ghost"))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_reason_of_a_cordon_is_short(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as replica, run_router(replica) as caller:
        longest = "é" * 256
        await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r0", reason=longest))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r0", reason="r" * 257))
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.value.details() == "reason: must be at most 256 characters, not 257"
        (row,) = (await caller.admin.ListReplicas(admin_pb2.ListReplicasRequest())).replicas
        assert row.reason == f"cordoned: {longest}", "what is refused changes nothing"


async def test_a_draining_replica_finishes_and_gets_nothing_more(run_router: RunRouter) -> None:
    async with (
        FakeReplica("r0", pace=0.02) as one,
        FakeReplica("r1") as two,
        run_router(one, two, policy="round_robin") as caller,
    ):
        streaming = asyncio.create_task(caller.ask(question(max_tokens=30)))
        await until(lambda: one.live == 1)
        one.draining = True
        one.tell()
        await until(lambda: sum(view.ready for view in caller.router.fleet.snapshot().replicas) == 1)
        for _ in range(3):
            assert (await caller.ask(question())).error is None
        assert (await streaming).text == text_of(30)
        assert (len(one.seen), len(two.seen)) == (1, 3)


async def test_list_replicas_tells_what_the_router_knows(run_router: RunRouter) -> None:
    async with FakeReplica("r0", script=silent(after=1)) as replica, run_router(replica) as caller:
        call = caller.generation.Generate(question(max_tokens=40))
        await call.read()
        listed = await caller.admin.ListReplicas(admin_pb2.ListReplicasRequest())
        (row,) = listed.replicas
        assert (row.address, row.open_streams, row.state.capacity_blocks) == (replica.address, 1, 1000)
        assert row.HasField("age")
        assert listed.admission_mode == admin_pb2.ADMISSION_MODE_LOCAL
        assert (listed.policy, listed.router) == ("prefix_affinity", caller.router.settings.name)
        call.cancel()
        await caller.idle()


async def test_explain_route_ranks_and_sends_nothing(run_router: RunRouter) -> None:
    text = "a" * (4 * BLOCK)
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, FakeReplica("r2") as three:
        hashes = BlockHasher("a" * 64, "", BLOCK)
        async with run_router(one, two, three) as caller:
            ids = (await caller.generation.Tokenize(pb.TokenizeRequest(text=text))).token_ids
            two.stored = hashes.chain(list(ids))
            await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r2", reason="test"))
        async with run_router(one, two, three) as caller:
            await caller.admin.Cordon(admin_pb2.CordonRequest(replica="r2", reason="test"))
            explained = await caller.admin.ExplainRoute(
                admin_pb2.ExplainRouteRequest(request=question(text, max_tokens=16))
            )
            rows = [(row.replica, row.rank, row.hit_blocks, row.need_blocks) for row in explained.candidates]
            assert rows == [("r1", 0, 4, 5), ("r0", 1, 0, 5), ("r2", -1, 0, 0)]
            assert explained.candidates[2].reason == "cordoned: test"
            assert (explained.prompt_tokens, explained.expected_output_tokens) == (64, 16)
            heard = await caller.ask(question(text, max_tokens=16))
            assert heard.started[0].replica == "r1"
        assert not one.seen


async def test_a_second_live_call_with_an_id_is_refused_and_the_first_unharmed(run_router: RunRouter) -> None:
    async with FakeReplica(pace=0.02) as replica, run_router(replica) as caller:
        first = asyncio.create_task(caller.ask(question(max_tokens=20, request_id="same")))
        await until(lambda: replica.live == 1)
        second = await caller.ask(question(request_id="same"))
        assert second.error is not None
        assert second.error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert (await first).text == text_of(20)
        third = await caller.ask(question(request_id="same"))
        assert third.error is None


async def test_grpcs_own_retry_of_a_failed_call_is_let_in_with_the_same_id(run_router: RunRouter) -> None:
    retrying = {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
    async with FakeReplica() as replica, run_router(replica, max_attempts=1) as caller:
        replica.scripts.append(failing(errors.replica_lost([], "the engine died")))
        options = [("grpc.service_config", json.dumps(retrying)), ("grpc.enable_retries", 1)]
        async with grpc.aio.insecure_channel(caller.router.server.address, options=options) as channel:
            call = GenerationServiceStub(channel).Generate(question(max_tokens=2, request_id="same"))
            text = "".join([message.delta.text async for message in call])
        assert text == text_of(2)
        first, second = (seen.request for seen in replica.seen)
        assert first.request_id == second.request_id == "same"
        assert first.placement.call_id != second.placement.call_id


async def test_what_a_caller_says_of_placement_is_stripped(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        forged = internal_pb2.Placement(
            call_id="forged",
            attempt=9,
            epoch="forged",
            kv_salt=b"other tenant",
            continuation=internal_pb2.Continuation(prompt_ids=[1]),
        )
        heard = await caller.ask(question(max_tokens=2, placement=forged))
        assert heard.error is None
        placement = replica.seen[0].request.placement
        assert placement.call_id != "forged"
        assert (placement.attempt, placement.epoch, placement.kv_salt) == (1, replica.epoch, b"")
        assert not placement.HasField("continuation")


async def test_an_unset_seed_is_drawn_and_a_set_one_kept(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        for _ in range(2):
            await caller.ask(question())
        await caller.ask(question(sampling=pb.SamplingParams(seed=0)))
        seeds = [seen.request.sampling for seen in replica.seen]
        assert all(one.HasField("seed") for one in seeds)
        assert seeds[0].seed != seeds[1].seed
        assert seeds[2].seed == 0


BAD = {
    "nothing asked": pb.GenerateRequest(),
    "empty": pb.GenerateRequest(text=""),
    "not a number": question(sampling=pb.SamplingParams(temperature=float("nan"))),
    "out of the vocabulary": pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 999_999])),
    "bad id": question(request_id="no spaces here"),
    "no time": pb.GenerateRequest(text="x", timeout={}),  # type: ignore[arg-type]
    "unknown model": question(model="nobody"),
    "not built yet": question(tenant="t"),
    "too long": question(max_tokens=1_000_000),
    "broken template variables": pb.GenerateRequest(
        chat=pb.ChatInput(messages=[pb.ChatMessage(role="user")], template_variables_json="{")
    ),
}


async def test_bad_requests_harm_nobody(run_router: RunRouter, valkey: RedisServer, pool: CapacityPool) -> None:
    codes = {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.OUT_OF_RANGE,
    }
    async with (
        FakeReplica(pace=0.01, pool=pool) as replica,
        run_router(replica, redis_url=valkey.url, pool=pool.keys.pool) as caller,
    ):
        good = asyncio.create_task(caller.ask(question(max_tokens=60)))
        heard = await asyncio.gather(*(caller.ask(request) for request in list(BAD.values()) * 5))
        for name, one in zip(list(BAD) * 5, heard, strict=True):
            assert one.error is not None, name
            assert one.error.code() in codes, (name, one.error)
            assert from_call(one.error) is not None, name  # type: ignore[arg-type]
        assert (await good).text == text_of(60)
        assert len(replica.seen) == 1
        (view,) = caller.router.fleet.snapshot().replicas
        assert view.ready
        assert caller.router.admission.mode.value == "redis"
        await caller.idle()


async def test_all_violations_come_at_once(run_router: RunRouter) -> None:
    async with FakeReplica() as replica, run_router(replica) as caller:
        request = question(sampling=pb.SamplingParams(temperature=-1, top_p=2), request_id="!")
        heard = await caller.ask(request)
        assert heard.error is not None
        assert reason_of(heard) == Reason.INVALID_FIELD
        assert errors_of(heard.error)["metadata"] == {"violations": "3"}


async def test_a_replica_of_another_model_or_block_size_is_refused_with_the_reason(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, FakeReplica("r2") as three:
        two.model.model_id = "b" * 64
        three.model.block_size = 32
        async with run_router(one, replicas=(one.address, two.address, three.address)) as caller:
            await until(lambda: sum(bool(view.name) for view in caller.router.fleet.snapshot().replicas) == 3)
            ready = [view.name for view in caller.router.fleet.snapshot().replicas if view.ready]
            assert len(ready) == 1
            listed = await caller.admin.ListReplicas(admin_pb2.ListReplicasRequest())
            reasons = [row.reason for row in listed.replicas if row.standing == admin_pb2.REPLICA_STANDING_NOT_READY]
            assert len(reasons) == 2
            assert all("model id" in reason or "block size" in reason for reason in reasons)
            for _ in range(4):
                assert (await caller.ask(question())).started[0].replica == ready[0]


async def test_the_tokenizer_is_fetched_once_for_all_replicas_of_a_model(run_router: RunRouter) -> None:
    async with FakeReplica("r0") as one, FakeReplica("r1") as two, run_router(one, two):
        assert one.tokenizer_calls["whole"] + two.tokenizer_calls["whole"] == 1


async def test_a_reader_that_stops_slows_its_own_stream_only(run_router: RunRouter) -> None:
    """What is left unread is bounded by the transports' windows, not by the length of the answer."""
    produced = 0

    async def flood(replica: FakeReplica, request: pb.GenerateRequest, context: object):  # type: ignore[no-untyped-def]
        nonlocal produced
        yield pb.GenerateResponse(started=pb.Started(replica=replica.name))
        text = "x" * 20_000
        for position in range(3000):
            produced = position
            yield pb.GenerateResponse(
                delta=pb.Delta(token_ids=[1], text=text, position=position, text_offset=len(text) * position)
            )
        yield pb.GenerateResponse(finished=pb.Finished(reason=pb.FINISH_REASON_MAX_TOKENS))

    async with FakeReplica() as replica, run_router(replica) as caller:
        replica.scripts.append(flood)
        slow = caller.generation.Generate(question())
        await slow.read()
        await slow.read()
        still = 0
        while still < 20:
            before = produced
            await asyncio.sleep(0.02)
            still = still + 1 if produced == before else 0
        assert 0 < produced < 2900
        assert (await caller.ask(question(max_tokens=50))).text == text_of(50)
        rest = [message async for message in read_all(slow)]
        assert rest[-1].HasField("finished")
        assert sum(len(message.delta.token_ids) for message in rest) == 2999
        await caller.idle()


async def read_all(call):  # type: ignore[no-untyped-def]
    while (message := await call.read()) is not grpc.aio.EOF:
        yield message
