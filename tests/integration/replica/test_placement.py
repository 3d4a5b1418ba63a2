"""What a router asks of a replica: placed requests, attempts, continuations, state, the tokenizer."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2, model_pb2, replica_pb2
from pagemill_common.block_hash import BlockHasher
from support.fleet import until
from support.replica import Replica, ask, rest, status

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]

GREEDY = pb.SamplingParams(temperature=0, seed=3)


async def placement(one: Replica, call: str, attempt: int = 1, **fields: object) -> internal_pb2.Placement:
    fields.setdefault("epoch", (await one.state()).epoch)
    return internal_pb2.Placement(call_id=call, attempt=attempt, router="r", **fields)  # type: ignore[arg-type]


async def test_placement_on_another_epoch_is_refused_and_its_reservation_seen(shared: Replica) -> None:
    watch = shared.control.WatchState(replica_pb2.WatchStateRequest(router="epochs"))
    await watch.read()
    placed = await placement(shared, "call-epoch", epoch="0ther", reservation_id="res-epoch")
    found = await shared.fails(ask(4, placement=placed))
    assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "WRONG_EPOCH")
    assert "res-epoch" in await _seen(watch, 1)
    watch.cancel()


async def _seen(watch: object, count: int) -> list[str]:
    seen: list[str] = []
    async with asyncio.timeout(5):
        while len(seen) < count:
            seen += (await watch.read()).seen_reservation_ids  # type: ignore[attr-defined]
    return seen


async def test_reservation_is_seen_when_accepted_and_when_ended(shared: Replica) -> None:
    watch = shared.control.WatchState(replica_pb2.WatchStateRequest(router="seen"))
    await watch.read()
    placed = await placement(shared, "call-seen", reservation_id="res-seen", need_blocks=7)
    call = shared.generation.Generate(ask(200, placement=placed))
    await call.read()
    assert "res-seen" in await _seen(watch, 1)
    assert (await shared.state()).committed_blocks >= 7
    call.cancel()
    assert "res-seen" in await _seen(watch, 1)
    watch.cancel()
    await shared.idle()


async def test_higher_attempt_takes_over_and_older_ones_are_refused(shared: Replica) -> None:
    first = shared.generation.Generate(ask(500, request_id="a", placement=await placement(shared, "call-1", 1)))
    await first.read()
    second = shared.generation.Generate(ask(5, request_id="a", placement=await placement(shared, "call-1", 2)))
    assert (await rest(second))[-1].finished.usage.completion_tokens == 5
    lost = await status(first)
    assert (lost.code, lost.reason) == (grpc.StatusCode.ABORTED, "SUPERSEDED")
    late = await shared.fails(ask(5, request_id="a", placement=await placement(shared, "call-1", 1)))
    assert late.reason == "SUPERSEDED"
    await shared.idle()


async def test_two_calls_may_carry_one_request_id(shared: Replica) -> None:
    calls = [
        shared.generation.Generate(ask(20, request_id="same", placement=await placement(shared, name)))
        for name in ("call-a", "call-b")
    ]
    for call in calls:
        assert (await rest(call))[-1].finished.usage.completion_tokens == 20


def _continued(
    request: pb.GenerateRequest, base: internal_pb2.Placement, ids: list[int], text_bytes: int
) -> pb.GenerateRequest:
    again = pb.GenerateRequest()
    again.CopyFrom(request)
    again.placement.CopyFrom(base)
    again.placement.continuation.CopyFrom(
        internal_pb2.Continuation(
            prompt_ids=request.token_ids.ids,
            choices=[internal_pb2.ChoiceProgress(token_ids=ids, text_bytes=text_bytes)],
            seed=request.sampling.seed,
            prompt_tokens=len(request.token_ids.ids),
            cached_tokens=5,
            remaining=Duration(seconds=30),
            attempt=1,
        )
    )
    return again


@pytest.mark.parametrize("cut", [1, 7, 19, 39])
async def test_continuation_goes_on_where_the_caller_is(shared: Replica, cut: int) -> None:
    request = ask(40, sampling=GREEDY)
    whole = await rest(shared.generation.Generate(request))
    ids = [i for m in whole for i in m.delta.token_ids]
    text = "".join(m.delta.text for m in whole)
    upto = [m.delta for m in whole if m.HasField("delta") and m.delta.position < cut]
    delivered = "".join(d.text for d in upto)
    again = _continued(request, await placement(shared, f"call-c{cut}", 2), ids[:cut], len(delivered.encode()))
    found = await rest(shared.generation.Generate(again))
    deltas = [m.delta for m in found if m.HasField("delta")]
    assert ids[:cut] + [i for d in deltas for i in d.token_ids] == ids
    assert delivered + "".join(d.text for d in deltas) == text
    assert (deltas[0].position, deltas[0].text_offset) == (cut, len(delivered.encode()))
    end = found[-1].finished
    assert (end.usage.completion_tokens, end.usage.cached_tokens) == (40, 5)


async def test_continuation_that_has_ended_finishes_without_a_step(shared: Replica) -> None:
    request = ask(6, sampling=GREEDY)
    whole = await rest(shared.generation.Generate(request))
    ids = [i for m in whole for i in m.delta.token_ids]
    size = len("".join(m.delta.text for m in whole).encode())
    steps = (await shared.state()).steps
    found = await rest(shared.generation.Generate(_continued(request, await placement(shared, "call-e", 2), ids, size)))
    assert [m.WhichOneof("event") for m in found] == ["started", "finished"]
    assert found[-1].finished.reason == pb.FINISH_REASON_MAX_TOKENS
    assert (await shared.state()).steps <= steps + 1
    await shared.idle()


async def test_continuation_that_holds_a_stop_string_finishes_at_it(shared: Replica) -> None:
    request = ask(30, sampling=GREEDY)
    whole = await rest(shared.generation.Generate(request))
    ids = [i for m in whole for i in m.delta.token_ids]
    text = "".join(m.delta.text for m in whole)
    request.stop.strings.append(text[20:24])
    again = _continued(request, await placement(shared, "call-s", 2), ids, 0)
    found = await rest(shared.generation.Generate(again))
    assert "".join(m.delta.text for m in found) == text[: text.index(text[20:24])]
    assert found[-1].finished.reason == pb.FINISH_REASON_STOP_STRING
    await shared.idle()


async def test_continuation_that_does_not_fit_its_tokens_is_refused(shared: Replica) -> None:
    again = _continued(ask(30, sampling=GREEDY), await placement(shared, "call-x", 2), [5000, 5001], 10_000)
    found = await shared.fails(again)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    await shared.idle()


async def test_watch_begins_with_a_snapshot_and_then_tells_what_enters_the_cache(shared: Replica) -> None:
    watch = shared.control.WatchState(replica_pb2.WatchStateRequest(router="cache"))
    first = await watch.read()
    assert first.kv_events.snapshot
    prompt = list(range(9000, 9064))
    await rest(shared.generation.Generate(ask(2, token_ids=pb.TokenIds(ids=prompt))))
    expected = set(BlockHasher(first.state.model.model_id, "", 16).chain(prompt)[:4])
    assert len(expected) == 4
    stored = set(first.kv_events.stored)
    async with asyncio.timeout(5):
        while not expected <= stored:
            message = await watch.read()
            assert not message.kv_events.snapshot
            stored |= set(message.kv_events.stored)
    watch.cancel()


async def test_watch_speaks_at_least_every_second_and_counts_routers(shared: Replica) -> None:
    watches = [shared.control.WatchState(replica_pb2.WatchStateRequest(router=name)) for name in ("x", "x", "y")]
    for watch in watches:
        await watch.read()

    async def two() -> bool:
        return (await watches[0].read()).state.watching_routers == 2

    await until(two, 3.0, "x and y are counted once each")
    for _ in range(3):
        async with asyncio.timeout(2.0):
            await watches[0].read()
    for watch in watches:
        watch.cancel()


async def test_state_tells_who_and_what(shared: Replica) -> None:
    state = await shared.state()
    assert (state.name, state.ready, state.draining, state.capacity_blocks) == ("one", True, False, 256)
    assert state.front_pid == shared.tier.status["pid"]
    assert state.engine_pid == shared.tier.status["engine_pid"]
    assert state.model.name == "smollm2"
    assert len(state.epoch) == 16


async def test_tokenizer_comes_header_first_in_bounded_pieces(shared: Replica) -> None:
    parts = await rest(shared.control.GetTokenizer(replica_pb2.GetTokenizerRequest()))
    header, chunks = parts[0].header, [part.chunk for part in parts[1:]]
    raw = b"".join(chunks)
    assert all(0 < len(chunk) <= 1 << 20 for chunk in chunks)
    assert (hashlib.sha256(raw).digest(), len(raw)) == (header.digest, header.size)
    assert model_pb2.TokenizerBundle.FromString(raw).chat_template
    known = await rest(shared.control.GetTokenizer(replica_pb2.GetTokenizerRequest(known_digest=header.digest)))
    assert [part.WhichOneof("part") for part in known] == ["header"]
