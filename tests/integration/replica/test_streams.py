"""Streams of one replica: their messages, their ends, what a caller's mistakes bring."""

from __future__ import annotations

import asyncio
import contextlib
import math

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from pagemill.v1 import generation_pb2 as pb
from support.replica import Replica, ask, rest, status

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]


async def messages(one: Replica, request: pb.GenerateRequest) -> list[pb.GenerateResponse]:
    return [message async for message in one.generation.Generate(request)]


async def test_stream_is_started_then_deltas_without_gap_then_one_finished(shared: Replica) -> None:
    found = await messages(shared, ask(20, request_id="abc", sampling=pb.SamplingParams(seed=7)))
    kinds = [message.WhichOneof("event") for message in found]
    assert kinds == ["started", *["delta"] * (len(found) - 2), "finished"]
    begun, end = found[0].started, found[-1].finished
    assert (begun.request_id, begun.model, begun.replica, begun.seed) == ("abc", "smollm2", "one", 7)
    position = offset = 0
    for message in found[1:-1]:
        delta = message.delta
        assert (delta.position, delta.text_offset) == (position, offset)
        position += len(delta.token_ids)
        offset += len(delta.text.encode())
    assert position == end.usage.completion_tokens == 20
    assert end.usage.prompt_tokens == begun.prompt_tokens == 40
    assert end.usage.cached_tokens == begun.cached_tokens
    assert end.reason == pb.FINISH_REASON_MAX_TOKENS
    assert end.timing.decode.ToNanoseconds() > 0


async def test_text_is_the_decode_of_all_tokens(shared: Replica) -> None:
    found = await messages(shared, ask(200, output=pb.OutputOptions(skip_special_tokens=False)))
    ids = [i for message in found for i in message.delta.token_ids]
    text = "".join(message.delta.text for message in found)
    whole = await shared.generation.Detokenize(pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False))
    assert text == whole.text
    assert "�" not in text[:-1] or "�" in whole.text


async def test_same_seed_same_answer_and_streamed_equals_whole(shared: Replica) -> None:
    request = ask(30, sampling=pb.SamplingParams(seed=11, temperature=0.8))
    streamed = await messages(shared, request)
    whole = await shared.generation.GenerateText(pb.GenerateTextRequest(request=request))
    assert "".join(m.delta.text for m in streamed) == whole.choices[0].text
    assert whole.choices[0].finished.usage.completion_tokens == 30
    assert whole.started.seed == 11


async def test_unset_seeds_differ_and_are_told(shared: Replica) -> None:
    seeds = {(await messages(shared, ask(1)))[0].started.seed for _ in range(4)}
    assert len(seeds) == 4


async def test_prompt_is_cached_for_the_next_request(shared: Replica) -> None:
    request = ask(4, token_ids=pb.TokenIds(ids=range(5000, 5100)))
    first, second = await messages(shared, request), await messages(shared, request)
    assert first[0].started.cached_tokens == 0
    assert second[0].started.cached_tokens == 96
    assert second[-1].finished.usage.cached_tokens == 96


async def test_token_ids_may_be_left_out(shared: Replica) -> None:
    found = await messages(shared, ask(10, output=pb.OutputOptions(token_ids=False)))
    assert not any(message.delta.token_ids for message in found)
    assert found[-1].finished.usage.completion_tokens == 10


async def test_stop_string_ends_the_text_exactly_and_the_engine_at_once(shared: Replica) -> None:
    plain = await messages(shared, ask(60, sampling=pb.SamplingParams(temperature=0)))
    text = "".join(message.delta.text for message in plain)
    stop = text[40:46]
    cut = text.index(stop)
    for include in (False, True):
        request = ask(
            60,
            sampling=pb.SamplingParams(temperature=0),
            stop=pb.StopConditions(strings=[stop, "never seen"], include_stop=include),
        )
        found = await messages(shared, request)
        end = found[-1].finished
        assert "".join(message.delta.text for message in found) == text[: cut + (len(stop) if include else 0)]
        assert (end.reason, end.matched_string) == (pb.FINISH_REASON_STOP_STRING, stop)
        assert end.usage.completion_tokens == sum(len(message.delta.token_ids) for message in found) < 60
    await shared.idle(within=2.0)


async def test_stop_token_is_told_and_its_text_left_out(shared: Replica) -> None:
    plain = await messages(shared, ask(12, sampling=pb.SamplingParams(temperature=0)))
    ids = [i for message in plain for i in message.delta.token_ids]
    stop = ids[7]
    end_at = ids.index(stop) + 1
    texts = []
    for include in (False, True):
        request = ask(
            12,
            sampling=pb.SamplingParams(temperature=0),
            stop=pb.StopConditions(token_ids=[stop], include_stop=include),
        )
        found = await messages(shared, request)
        end = found[-1].finished
        assert (end.reason, end.matched_token_id) == (pb.FINISH_REASON_STOP_TOKEN, stop)
        assert end.usage.completion_tokens == end_at
        assert [i for message in found for i in message.delta.token_ids] == ids[:end_at]
        texts.append("".join(message.delta.text for message in found))
    assert texts[1].startswith(texts[0])
    assert len(texts[1]) > len(texts[0])


async def test_second_live_request_with_an_id_is_refused_and_the_first_untouched(shared: Replica) -> None:
    first = shared.generation.Generate(ask(100, request_id="twice"))
    await first.read()
    refused = await shared.fails(ask(4, request_id="twice"))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST_ID")
    assert (await rest(first))[-1].finished.usage.completion_tokens == 100
    again = await messages(shared, ask(2, request_id="twice"))
    assert again[-1].HasField("finished")


async def test_abort_and_resubmit_in_a_loop_ends_every_stream(shared: Replica) -> None:
    for _ in range(20):
        call = shared.generation.Generate(ask(500, request_id="loop"))
        await call.read()
        call.cancel()
        # The name is free once the server has seen the cancel.
        for _ in range(200):
            probe = shared.generation.Generate(ask(1, request_id="loop"))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await rest(probe)
            if await probe.code() is grpc.StatusCode.OK:
                break
            assert await probe.code() is grpc.StatusCode.ALREADY_EXISTS
        else:
            raise AssertionError("the name never came free")
    await shared.idle()


async def test_grpc_own_retry_takes_over(shared: Replica) -> None:
    first = shared.generation.Generate(ask(400, request_id="retried"))
    await first.read()
    again = shared.generation.Generate(ask(3, request_id="retried"), metadata=[("grpc-previous-rpc-attempts", "1")])
    assert (await rest(again))[-1].HasField("finished")
    assert (await status(first)).reason == "SUPERSEDED"
    await shared.idle()


async def test_cancel_frees_blocks_within_a_step(shared: Replica) -> None:
    calls = [shared.generation.Generate(ask(1000, token_ids=pb.TokenIds(ids=[2000 + i] * 30))) for i in range(3)]
    for call in calls:
        await call.read()
    assert (await shared.state()).running == 3
    for call in calls:
        call.cancel()
    await shared.idle(within=2.0)


async def test_cancel_at_any_moment_leaves_nothing(shared: Replica) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016):
        calls = [shared.generation.Generate(ask(300, text="some text to tokenise")) for _ in range(3)]
        await asyncio.sleep(delay)
        for call in calls:
            call.cancel()
        for call in calls:
            with pytest.raises(asyncio.CancelledError):
                await call.read()
    await shared.idle()
    assert (await messages(shared, ask(2)))[-1].HasField("finished")


async def test_timeout_in_decode_and_none_left_over(shared: Replica) -> None:
    call = shared.generation.Generate(ask(2000 - 40, timeout=Duration(nanos=150_000_000)))
    found = await status(call)
    assert (found.code, found.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert found.metadata["stage"] == "decode"
    await shared.idle()


async def test_grpc_deadline_alone_ends_the_request_too(shared: Replica) -> None:
    call = shared.generation.Generate(ask(1900), timeout=0.15)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await rest(call)
    assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await shared.idle()


def _with(**fields: object) -> pb.GenerateRequest:
    return ask(4, **fields)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(), "input"),
        (_with(request_id="not allowed"), "request_id"),
        (_with(token_ids=pb.TokenIds()), "token_ids.ids"),
        (_with(token_ids=pb.TokenIds(ids=[1, 49152])), "token_ids.ids[1]"),
        (_with(token_ids=pb.TokenIds(ids=[4_294_967_295])), "token_ids.ids[0]"),
        (_with(sampling=pb.SamplingParams(temperature=math.nan)), "sampling.temperature"),
        (_with(sampling=pb.SamplingParams(temperature=math.inf)), "sampling.temperature"),
        (_with(sampling=pb.SamplingParams(temperature=-1)), "sampling.temperature"),
        (_with(sampling=pb.SamplingParams(top_p=0)), "sampling.top_p"),
        (_with(sampling=pb.SamplingParams(repetition_penalty=0)), "sampling.repetition_penalty"),
        (_with(sampling=pb.SamplingParams(frequency_penalty=math.nan)), "sampling.frequency_penalty"),
        (_with(sampling=pb.SamplingParams(logit_bias={50_000: 1})), "sampling.logit_bias[50000]"),
        (_with(sampling=pb.SamplingParams(logit_bias={5: math.nan})), "sampling.logit_bias[5]"),
        (_with(sampling=pb.SamplingParams(banned_token_ids=[60_000])), "sampling.banned_token_ids[0]"),
        (_with(stop=pb.StopConditions(strings=[""])), "stop.strings[0]"),
        (_with(stop=pb.StopConditions(strings=["x"] * 17)), "stop.strings"),
        (_with(stop=pb.StopConditions(min_tokens=5)), "stop.min_tokens"),
        (_with(timeout=Duration(seconds=-1)), "timeout"),
        (_with(timeout=Duration()), "timeout"),
        (_with(n=0), "n"),
        (_with(chat=pb.ChatInput(), token_ids=None), "chat.messages"),
    ],
)
async def test_bad_field_is_named_and_hurts_nobody(shared: Replica, request_: pb.GenerateRequest, field: str) -> None:
    running = shared.generation.Generate(ask(60, sampling=pb.SamplingParams(temperature=0)))
    await running.read()
    found = await shared.fails(request_)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT
    bad = next(d for d in found.details if isinstance(d, error_details_pb2.BadRequest))
    assert field in [violation.field for violation in bad.field_violations]
    assert (await rest(running))[-1].finished.usage.completion_tokens == 60


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (_with(n=2), "n"),
        (_with(priority=1), "priority"),
        (_with(tenant="t"), "tenant"),
        (_with(adapter="a"), "adapter"),
        (_with(output=pb.OutputOptions(logprobs=pb.LogprobOptions())), "output.logprobs"),
        (_with(structured_output=pb.StructuredOutput(regex="x")), "structured_output"),
    ],
)
async def test_field_that_does_not_work_is_named(shared: Replica, request_: pb.GenerateRequest, field: str) -> None:
    found = await shared.fails(request_)
    assert (found.code, found.reason) == (grpc.StatusCode.UNIMPLEMENTED, "FIELD_NOT_SUPPORTED")
    assert found.metadata["field"] == field


async def test_too_long_and_unknown_model(shared: Replica) -> None:
    for request in (ask(2048), ask(1, token_ids=pb.TokenIds(ids=[5000] * 2048))):
        found = await shared.fails(request)
        assert (found.code, found.reason) == (grpc.StatusCode.OUT_OF_RANGE, "TOO_LONG")
    found = await shared.fails(ask(1, model="other"))
    assert (found.code, found.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert "smollm2" in found.message


async def test_unset_max_tokens_goes_to_the_end_of_the_context(shared: Replica) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[3000] * 2040))
    found = await messages(shared, request)
    assert found[-1].finished.usage.completion_tokens == 8
    assert found[-1].finished.reason in (pb.FINISH_REASON_MAX_TOKENS, pb.FINISH_REASON_CONTEXT_FULL)


async def test_full_replica_refuses_before_any_message_and_takes_again_later(shared: Replica) -> None:
    held = [shared.generation.Generate(ask(2000, token_ids=pb.TokenIds(ids=[4000 + i] * 40))) for i in range(2)]
    for call in held:
        await call.read()
    found = await shared.fails(ask(100))
    assert (found.code, found.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REPLICA_FULL")
    assert any(isinstance(detail, error_details_pb2.RetryInfo) for detail in found.details)
    for call in held:
        call.cancel()
    await shared.idle()
    assert (await messages(shared, ask(100)))[-1].HasField("finished")


async def test_chat_and_models_and_tokens(shared: Replica) -> None:
    listed = (await shared.generation.ListModels(pb.ListModelsRequest())).models
    model = (await shared.generation.GetModel(pb.GetModelRequest(model="smollm2"))).model
    assert list(listed) == [model]
    assert (model.block_size, model.vocabulary_size, model.max_context_tokens) == (16, 49152, 2048)
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="Hi")])
    tokens = await shared.generation.Tokenize(pb.TokenizeRequest(chat=chat))
    found = await messages(shared, pb.GenerateRequest(chat=chat, stop=pb.StopConditions(max_tokens=1)))
    assert found[0].started.prompt_tokens == len(tokens.token_ids)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await shared.generation.GetModel(pb.GetModelRequest(model="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
