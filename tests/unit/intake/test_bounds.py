"""What would cost much is refused before it is done, and named; what fits never is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import internal_pb2
from pagemill_common.errors import StatusError
from pagemill_common.intake import Limits, ModelFacts, check_fields, crowded, detokenize, prepare, tokenize
from pagemill_common.intake.room import CUT_BYTES
from pagemill_common.tokenisation import ModelTokenizer

LONGEST = len("</s>")
"""Bytes of the tokenizer's longest token."""


class Unencoded(ModelTokenizer):
    """The tokenizer for texts that must be refused without being encoded."""

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        raise AssertionError("a text that cannot fit was encoded")


def chat(content: str = "hi", variables: str = "") -> pb.ChatInput:
    return pb.ChatInput(messages=[pb.ChatMessage(role="user", content=content)], template_variables_json=variables)


def refusal(call: Callable[..., Any], *arguments: Any) -> tuple[grpc.StatusCode, str, str]:
    """Code, field and description."""
    with pytest.raises(StatusError) as refused:
        call(*arguments)
    bad = next(d for d in refused.value.details if isinstance(d, error_details_pb2.BadRequest))
    return refused.value.code, bad.field_violations[0].field, bad.field_violations[0].description


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    unencoded = Unencoded(tokenizer.bundle)
    size = LONGEST * 99 + 1
    for request, field in (
        (pb.GenerateRequest(text="x" * size), "text"),
        (pb.GenerateRequest(chat=chat("x" * size)), "chat"),
    ):
        code, found, description = refusal(prepare, request, unencoded, facts)
        assert (code, found) == (grpc.StatusCode.OUT_OF_RANGE, field)
        assert "100 tokens (max_context_tokens)" in description
        assert "tokens or more" in description


def test_the_longest_text_that_fits_is_taken(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(text="</s>" * 99, add_special_tokens=False)
    assert len(request.text) == LONGEST * 99
    assert prepare(request, tokenizer, facts).prompt_ids == [257] * 99


def test_a_text_that_is_cut_has_a_bound_of_its_own(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(text="x" * (LONGEST * 99 + 1), truncate_prompt=0)
    assert len(prepare(request, tokenizer, facts).prompt_ids) == 99
    request.text = "x" * (CUT_BYTES + 1)
    code, field, description = refusal(prepare, request, Unencoded(tokenizer.bundle), facts)
    assert (code, field) == (grpc.StatusCode.OUT_OF_RANGE, "text")
    assert str(CUT_BYTES) in description


def test_a_cut_text_may_be_as_long_as_one_that_fits_uncut(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    large = replace(facts, max_context_tokens=CUT_BYTES, max_request_tokens=CUT_BYTES)
    text = "</s>" * (CUT_BYTES // LONGEST + 1)
    request = pb.GenerateRequest(text=text, add_special_tokens=False, truncate_prompt=5)
    assert prepare(request, tokenizer, large).prompt_ids == [257] * 5


def test_ids_that_cannot_fit_are_counted_first(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9999] * 100))
    assert refusal(prepare, request, tokenizer, facts)[:2] == (grpc.StatusCode.OUT_OF_RANGE, "token_ids")
    request.truncate_prompt = 5
    assert refusal(prepare, request, tokenizer, facts)[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "field", ["sampling.logit_bias", "sampling.banned_token_ids", "stop.strings", "stop.token_ids"]
)
def test_too_many_entries_are_counted_and_not_looked_at(field: str, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(text="hi")
    wrong: dict[str, Callable[[], Any]] = {
        "sampling.logit_bias": lambda: request.sampling.logit_bias.update(dict.fromkeys(range(2000), 999.0)),
        "sampling.banned_token_ids": lambda: request.sampling.banned_token_ids.extend([9999] * 2000),
        "stop.strings": lambda: request.stop.strings.extend([""] * 2000),
        "stop.token_ids": lambda: request.stop.token_ids.extend([9999] * 2000),
    }
    wrong[field]()
    with pytest.raises(StatusError) as refused:
        check_fields(request, Limits(), facts)
    # Beside the count itself, only stop strings are read, and no more of them than there may be.
    read = Limits().max_stop_strings if field == "stop.strings" else 0
    assert refused.value.message.endswith(f"(and {read} more)") if read else "more)" not in refused.value.message
    assert f"{field}: has 2000 entries" in refused.value.message
    assert crowded(request, Limits())


def test_a_request_at_every_bound_is_not_crowded() -> None:
    limits = Limits()
    request = pb.GenerateRequest(text="hi")
    request.stop.strings.extend(["x"] * limits.max_stop_strings)
    request.stop.token_ids.extend([1] * limits.max_stop_tokens)
    request.sampling.banned_token_ids.extend([1] * limits.max_banned_tokens)
    request.sampling.logit_bias.update(dict.fromkeys(range(limits.max_logit_bias), 0.0))
    check_fields(request, limits)
    assert not crowded(request, limits)
    for ids in ([1] * limits.max_prompt_tokens, [1] * (limits.max_prompt_tokens + 1)):
        request.token_ids.ids[:] = ids
        assert crowded(request, limits) == (len(ids) > limits.max_prompt_tokens)


def test_too_many_choices_of_a_continuation(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(text="hi")
    request.placement.continuation.choices.extend([internal_pb2.ChoiceProgress(token_ids=[9999])] * 2)
    _, field, description = refusal(prepare, request, tokenizer, facts)
    assert field == "placement.continuation.choices"
    assert "2 entries" in description


HALVES = ['{"mood": "\\ud800"}', '{"mood": [{"x": "a\\uDfff"}]}', '{"\\ud83d": 1}', '{"mood": "\\ude00\\ud83d"}']


@pytest.mark.parametrize("variables", HALVES)
def test_half_a_surrogate_pair_in_variables_is_named(
    variables: str, tokenizer: ModelTokenizer, facts: ModelFacts
) -> None:
    request = pb.GenerateRequest(chat=chat(variables=variables))
    asked = pb.TokenizeRequest(chat=request.chat)
    for call in (
        lambda: check_fields(request),
        lambda: prepare(request, tokenizer, facts),
        lambda: tokenize(asked, tokenizer, facts),
    ):
        code, field, description = refusal(call)
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat.template_variables_json")
        assert "surrogate" in description


def test_whole_pairs_are_characters(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    request = pb.GenerateRequest(chat=chat(variables='{"mood": "\\ud83d\\ude42 \\\\ud800"}'))
    check_fields(request)
    ids = prepare(request, tokenizer, facts).prompt_ids
    assert tokenizer.decode(ids) == "<user>hi🙂 \\ud800<assistant>"


def test_a_template_that_writes_what_is_no_text(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    bundle = type(tokenizer.bundle).FromString(tokenizer.serialised_bundle)
    bundle.chat_template = "{{ '%c' % 55296 }}"
    half = ModelTokenizer.from_bundle(bundle)
    request = pb.GenerateRequest(chat=chat())
    for call in (
        lambda: prepare(request, half, facts),
        lambda: tokenize(pb.TokenizeRequest(chat=request.chat), half, facts),
    ):
        code, field, _ = refusal(call)
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "chat")


def test_variables_have_bounds_of_their_own() -> None:
    limits = Limits(max_variables_bytes=100, max_variables_values=10)
    check_fields(pb.GenerateRequest(chat=chat(variables=json.dumps({"a": ",:[{" * 20}))), limits)
    check_fields(pb.GenerateRequest(chat=chat(variables=json.dumps({"a": ["\\", '"', ",", ",,,,,,,"]}))), limits)
    for variables in (json.dumps({"a": "x" * 100}), json.dumps({"a": [0] * 10}), '{"a": ' + "[" * 10 + "]" * 10 + "}"):
        _, field, _ = refusal(check_fields, pb.GenerateRequest(chat=chat(variables=variables)), limits)
        assert field == "chat.template_variables_json"


def test_tokenize_takes_so_many_bytes(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    limits = Limits(max_tokenize_bytes=20)
    assert len(tokenize(pb.TokenizeRequest(text="x" * 20), tokenizer, facts, limits).token_ids) == 21
    unencoded = Unencoded(tokenizer.bundle)
    for request, field in (
        (pb.TokenizeRequest(text="x" * 21), "text"),
        (pb.TokenizeRequest(chat=chat("x" * 4)), "chat"),
    ):
        code, found, description = refusal(tokenize, request, unencoded, facts, limits)
        assert (code, found) == (grpc.StatusCode.INVALID_ARGUMENT, field)
        assert "at most 20" in description


def test_the_default_bounds_keep_replies_within_a_message(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    limits = Limits()
    # A token a byte, each of which shows as a replacement character.
    reply = tokenize(pb.TokenizeRequest(text="é" * 5000), tokenizer, facts)
    assert reply.ByteSize() / 10_000 * limits.max_tokenize_bytes < limits.max_reply_bytes


def test_a_reply_that_would_be_too_large_is_refused(tokenizer: ModelTokenizer, facts: ModelFacts) -> None:
    limits = Limits(max_reply_bytes=60)
    half = tokenizer.encode("é", add_special_tokens=False)[:1]
    ids = {"plain": tokenizer.encode("x", add_special_tokens=False) * 61, "halves": half * 20, "special": [257] * 20}
    assert detokenize(pb.DetokenizeRequest(token_ids=ids["special"]), tokenizer, facts, limits).text == ""
    for name, shown in (("plain", True), ("halves", True), ("special", False)):
        request = pb.DetokenizeRequest(token_ids=ids[name], skip_special_tokens=shown)
        code, field, description = refusal(detokenize, request, tokenizer, facts, limits)
        assert (code, field) == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids")
        assert "at most 60" in description
    assert refusal(tokenize, pb.TokenizeRequest(text="x" * 20), tokenizer, facts, limits)[1] == "text"
