"""From a request to prompt ids and decided knobs, and through the wire to the same again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2, model_pb2
from pagemill_common.errors import StatusError
from pagemill_common.intake import (
    ModelFacts,
    detokenize,
    new_request_id,
    prepare,
    resolve_model,
    to_forwarded,
    tokenize,
)
from pagemill_common.tokenisation import ModelTokenizer


def text(value: str = "hello", **stop: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=value, stop=pb.StopConditions(**stop))


def refusal(
    request: pb.GenerateRequest, tokenizer: ModelTokenizer, facts: ModelFacts
) -> tuple[grpc.StatusCode, str, str]:
    """Code, field and description."""
    with pytest.raises(StatusError) as refused:
        prepare(request, tokenizer, facts)
    bad = next(d for d in refused.value.details if isinstance(d, error_details_pb2.BadRequest))
    return refused.value.code, bad.field_violations[0].field, bad.field_violations[0].description


def test_a_text_prompt_gets_one_beginning(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    hello = tokenizer.encode("hello", add_special_tokens=False)
    assert prepare(text(), tokenizer, facts).prompt_ids == [256, *hello]
    assert prepare(text("<s>hello"), tokenizer, facts).prompt_ids == [256, *hello]
    without = text()
    without.add_special_tokens = False
    assert prepare(without, tokenizer, facts).prompt_ids == hello


def test_a_chat_is_rendered(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="hi", name="Ann")])
    request = pb.GenerateRequest(chat=chat, add_special_tokens=True)
    ids = prepare(request, tokenizer, facts).prompt_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<user/Ann>hi<assistant>"
    request.chat.add_generation_prompt = False
    request.chat.template_variables_json = '{"mood": "!"}'
    ids = prepare(request, tokenizer, facts).prompt_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<user/Ann>hi!"


def test_a_template_that_refuses(tokenizer: ModelTokenizer, bare_tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(chat=pb.ChatInput(messages=[pb.ChatMessage(role="bad")]))
    code, field, description = refusal(request, tokenizer, facts)
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat")
    assert "no such role" in description
    code, field, description = refusal(request, bare_tokenizer, facts)
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat")
    assert "no chat template" in description


def test_token_ids_are_taken_as_they_are(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 257, 5]))
    assert prepare(request, tokenizer, facts).prompt_ids == [5, 257, 5]
    request.token_ids.ids.append(258)
    assert refusal(request, tokenizer, facts)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids.ids[3]")


def test_special_tokens_that_the_model_does_not_know(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    code, field, _ = refusal(text("a</s>"), tokenizer, replace(facts, vocabulary_size=257, end_of_text_ids=()))
    assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "text")


def test_a_chat_that_renders_to_nothing(bare_tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    bundle = model_pb2.TokenizerBundle.FromString(bare_tokenizer.serialised_bundle)
    bundle.chat_template = "{# nothing #}"
    request = pb.GenerateRequest(chat=pb.ChatInput(messages=[pb.ChatMessage(role="user")]))
    assert refusal(request, ModelTokenizer.from_bundle(bundle), facts)[1] == "chat"


def test_lengths(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    # 1 + 5 prompt tokens, 100 in all.
    assert prepare(text(), tokenizer, facts).max_tokens == 94
    assert prepare(text(max_tokens=94), tokenizer, facts).total_tokens == 100
    code, field, description = refusal(text(max_tokens=95), tokenizer, facts)
    assert (code, field) == (grpc.StatusCode.OUT_OF_RANGE, "stop.max_tokens")
    assert "context is 100" in description
    assert prepare(text("x" * 98), tokenizer, facts).max_tokens == 1
    code, field, _ = refusal(text("x" * 99), tokenizer, facts)
    assert (code, field) == (grpc.StatusCode.OUT_OF_RANGE, "text")
    assert refusal(text(min_tokens=95), tokenizer, facts)[:2] == (grpc.StatusCode.OUT_OF_RANGE, "stop.min_tokens")
    assert refusal(text(max_tokens=2**32 - 1), tokenizer, facts)[0] is grpc.StatusCode.OUT_OF_RANGE


def test_the_smaller_of_context_and_cache_is_named(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    small = replace(facts, max_request_tokens=50)
    assert prepare(text(), tokenizer, small).max_tokens == 44
    _, _, description = refusal(text(max_tokens=45), tokenizer, small)
    assert "max_request_tokens" in description
    assert "50" in description


@pytest.mark.parametrize(
    ("keep", "stop", "kept"),
    [(3, {}, 3), (1000, {"max_tokens": 1}, 99), (0, {"max_tokens": 40}, 60), (0, {}, 99), (0, {"max_tokens": 99}, 1)],
)
def test_truncation_keeps_the_end(
    keep: int, stop: dict[str, int], kept: int, tokenizer: ModelTokenizer, facts: ModelFacts
) -> None:
    ids = [i % 250 for i in range(99 if keep == 1000 else 300)]
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), truncate_prompt=keep, stop=pb.StopConditions(**stop))
    assert prepare(request, tokenizer, facts).prompt_ids == ids[-kept:]


def test_truncation_leaves_short_prompts_alone_and_has_bounds(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = text()
    request.truncate_prompt = 0
    assert len(prepare(request, tokenizer, facts).prompt_ids) == 6
    request.stop.max_tokens = 100
    assert refusal(request, tokenizer, facts)[:2] == (grpc.StatusCode.OUT_OF_RANGE, "stop.max_tokens")
    long = text("x" * 300)
    long.truncate_prompt = 200
    assert refusal(long, tokenizer, facts)[:2] == (grpc.StatusCode.OUT_OF_RANGE, "text")


def test_unset_knobs_take_the_models_defaults_and_zero_is_no_default(
    tokenizer: ModelTokenizer, facts: ModelFacts
) -> None:
    sampling = prepare(text(), tokenizer, facts).sampling
    assert (sampling.temperature, sampling.top_k) == (pytest.approx(0.6), 40)
    assert (sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (pytest.approx(0.9), 0.0, 1.0)
    assert sampling.seed is None
    request = text()
    request.sampling.temperature = 0
    request.sampling.top_k = 0
    request.sampling.seed = 0
    sampling = prepare(request, tokenizer, facts).sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.0, 0, 0)
    plain = prepare(text(), tokenizer, replace(facts, sampling_defaults=model_pb2.SamplingDefaults())).sampling
    assert (plain.temperature, plain.top_k, plain.top_p) == (1.0, 0, 1.0)


def test_extremes_stay_in_float32(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = text()
    request.sampling.temperature = 1e-38
    request.sampling.repetition_penalty = 1e-38
    request.sampling.top_k = 258
    sampling = prepare(request, tokenizer, facts).sampling
    assert (sampling.temperature, sampling.top_k) == (0.0, 0)
    assert sampling.repetition_penalty == pytest.approx(1e-5)


def test_stops(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = text(strings=["a", "b", "a"], token_ids=[3, 3, 1], min_tokens=2, max_tokens=2, include_stop=True)
    prepared = prepare(request, tokenizer, facts)
    assert (prepared.stop_strings, prepared.stop_token_ids) == (("a", "b"), (3, 1))
    assert (prepared.min_tokens, prepared.include_stop, prepared.end_of_text_ids) == (2, True, (257,))
    request.stop.ignore_end_of_text = True
    assert prepare(request, tokenizer, facts).end_of_text_ids == ()


def test_its_detokeniser(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    prepared = prepare(text(strings=["END"]), tokenizer, facts)
    delta = prepared.detokeniser(tokenizer).push(tokenizer.encode("one END two", add_special_tokens=False))
    assert (delta.text, delta.stopped, delta.tokens_used) == ("one ", "END", 7)


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 100, width=32),
        "top_k": st.integers(0, 2**32 - 1),
        "top_p": st.floats(2**-20, 1, width=32),
        "min_p": st.floats(0, 1, width=32),
        "repetition_penalty": st.floats(2**-20, 100, width=32),
        "frequency_penalty": st.floats(-100, 100, width=32),
        "presence_penalty": st.floats(-100, 100, width=32),
        "logit_bias": st.dictionaries(st.integers(0, 257), st.floats(-100, 100, width=32), max_size=3),
        "banned_token_ids": st.lists(st.integers(0, 257), max_size=3),
        "seed": st.integers(0, 2**64 - 1),
    },
)
STOPS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.integers(5, 50),
        "min_tokens": st.integers(0, 5),
        "strings": st.lists(st.text(min_size=1, max_size=3, alphabet="ab é"), max_size=3),
        "token_ids": st.lists(st.integers(0, 257), max_size=3),
        "include_stop": st.booleans(),
        "ignore_end_of_text": st.booleans(),
    },
)


@settings(max_examples=200, deadline=None)
@given(
    prompt=st.text(min_size=1, max_size=8, alphabet=st.characters(codec="utf-8")),
    knobs=KNOBS,
    stops=STOPS,
    output=st.fixed_dictionaries({}, optional={"skip_special_tokens": st.booleans(), "token_ids": st.booleans()}),
    truncate=st.none() | st.integers(0, 5),
    seed=st.integers(0, 2**64 - 1),
    millis=st.none() | st.integers(1, 10**6),
)
def test_what_is_forwarded_prepares_to_the_same(
    tokenizer: ModelTokenizer,
    prompt: str,
    knobs: dict[str, Any],
    stops: dict[str, Any],
    output: dict[str, Any],
    truncate: int | None,
    seed: int,
    millis: int | None,
) -> None:
    facts = ModelFacts(
        name="tiny",
        max_context_tokens=100,
        max_request_tokens=100,
        vocabulary_size=258,
        sampling_defaults=model_pb2.SamplingDefaults(temperature=0.6, top_k=40, repetition_penalty=1.1),
        end_of_text_ids=(257,),
    )
    request = pb.GenerateRequest(
        request_id="r",
        model="tiny",
        text=prompt,
        sampling=pb.SamplingParams(**knobs),
        stop=pb.StopConditions(**stops),
        output=pb.OutputOptions(**output),
        truncate_prompt=truncate,
        allow_approximate_resume=True,
        add_special_tokens=True,
    )
    if millis is not None:
        request.timeout.FromMilliseconds(millis)
    prepared = prepare(request, tokenizer, facts)
    placement = internal_pb2.Placement(call_id="c", attempt=1)
    forwarded = to_forwarded(request, prepared, seed, placement)
    assert (forwarded.request_id, forwarded.model, forwarded.placement) == ("r", "tiny", placement)
    wire = pb.GenerateRequest.FromString(forwarded.SerializeToString())
    again = prepare(wire, tokenizer, facts)
    assert again == replace(prepared, sampling=replace(prepared.sampling, seed=seed))


def test_the_time_left_goes_along(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    prepared = prepare(text(), tokenizer, facts)
    for left, seconds in ((1.5, 1.5), (1e-12, 1e-9), (-3.0, 1e-9)):
        forwarded = to_forwarded(text(), prepared, 0, internal_pb2.Placement(), time_left=left)
        assert prepare(forwarded, tokenizer, facts).timeout == pytest.approx(seconds)
    assert not to_forwarded(text(), prepared, 0, internal_pb2.Placement()).HasField("timeout")


def test_a_continuation_is_checked(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    def with_choices(*choices: internal_pb2.ChoiceProgress, prompt: tuple[int, ...] = (1,)) -> pb.GenerateRequest:
        continuation = internal_pb2.Continuation(prompt_ids=prompt, choices=choices)
        request = text(max_tokens=3)
        request.placement.continuation.CopyFrom(continuation)
        return request

    progress = internal_pb2.ChoiceProgress
    prepare(with_choices(progress(token_ids=[1, 2, 3])), tokenizer, facts)
    for wrong in (
        with_choices(progress(token_ids=[258])),
        with_choices(progress(token_ids=[1, 2, 3, 4])),
        with_choices(progress(index=1)),
        with_choices(progress(), progress()),
        with_choices(prompt=(999,)),
    ):
        code, field, _ = refusal(wrong, tokenizer, facts)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert field.startswith("placement.continuation")


def test_models_are_found_by_name_then_alias(facts: ModelFacts) -> None:
    other = replace(facts, name="small", aliases=("tiny", "o"))
    assert resolve_model("", [facts]) is facts
    assert resolve_model("tiny", [other, facts]) is facts
    assert resolve_model("small", [facts, other]) is other
    assert resolve_model("o", [facts, other]) is other
    with pytest.raises(StatusError, match="small, tiny") as several:
        resolve_model("", [facts, other])
    assert several.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(StatusError, match="served: tiny") as unknown:
        resolve_model("x", [facts])
    assert unknown.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(StatusError, match="none") as nothing:
        resolve_model("", list[ModelFacts]())
    assert nothing.value.code is grpc.StatusCode.NOT_FOUND


def test_facts_of_a_served_model() -> None:
    model = model_pb2.Model(name="m", aliases=["a"], max_context_tokens=9, vocabulary_size=5, max_request_tokens=7)
    facts = ModelFacts.from_model(model, [3])
    assert (facts.name, facts.aliases, facts.max_total_tokens, facts.end_of_text_ids) == ("m", ("a",), 7, (3,))


def test_drawn_request_ids_are_valid() -> None:
    assert new_request_id(bytes) == "0" * 32


def test_tokenize_and_detokenize(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    reply = tokenize(pb.TokenizeRequest(text="hé"), tokenizer, facts)
    assert (reply.model, reply.rendered) == ("tiny", "hé")
    assert list(reply.token_ids) == tokenizer.encode("hé")
    assert list(reply.pieces) == ["<s>", "h", "\ufffd", "\ufffd"]
    back = detokenize(pb.DetokenizeRequest(token_ids=reply.token_ids), tokenizer, facts)
    assert (back.model, back.text) == ("tiny", "hé")
    shown = pb.DetokenizeRequest(token_ids=reply.token_ids, skip_special_tokens=False)
    assert detokenize(shown, tokenizer, facts).text == "<s>hé"
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="x")])
    assert tokenize(pb.TokenizeRequest(chat=chat), tokenizer, facts).rendered == "<user>x<assistant>"
    assert not tokenize(pb.TokenizeRequest(text="", add_special_tokens=False), tokenizer, facts).token_ids
    for wrong in (pb.TokenizeRequest(), pb.TokenizeRequest(chat=pb.ChatInput())):
        with pytest.raises(StatusError):
            tokenize(wrong, tokenizer, facts)
    with pytest.raises(StatusError, match="vocabulary"):
        detokenize(pb.DetokenizeRequest(token_ids=[258]), tokenizer, facts)
