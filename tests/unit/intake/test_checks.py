"""Every field of a request, at its bounds and beyond them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from pagemill.v1 import generation_pb2 as pb
from pagemill_common.errors import StatusError
from pagemill_common.intake import Limits, ModelFacts, check_fields, valid_request_id

Change = Callable[[pb.GenerateRequest], Any]


def request(**fields: Any) -> pb.GenerateRequest:
    made = pb.GenerateRequest(text="hi")
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def refusal(made: pb.GenerateRequest, facts: ModelFacts | None = None, limits: Limits | None = None) -> StatusError:
    with pytest.raises(StatusError) as refused:
        check_fields(made, limits or Limits(), facts)
    return refused.value


def violations(error: StatusError) -> list[str]:
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    found = [d for d in error.details if isinstance(d, error_details_pb2.BadRequest)]
    return [violation.field for violation in found[0].field_violations]


def sampling(name: str, value: float) -> pb.GenerateRequest:
    made = request()
    setattr(made.sampling, name, value)
    return made


RANGES = {
    "temperature": ((0.0, 100.0), (-0.001, 100.1)),
    "top_p": ((1e-6, 1.0), (0.0, -0.5, 1.01)),
    "min_p": ((0.0, 1.0), (-0.1, 1.01)),
    "repetition_penalty": ((1e-3, 100.0), (0.0, -1.0, 101.0)),
    "frequency_penalty": ((-100.0, 100.0), (-100.1, 100.1)),
    "presence_penalty": ((-100.0, 100.0), (-100.1, 100.1)),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, (good, _) in RANGES.items() for v in good])
def test_bounds_of_sampling_are_taken(name: str, value: float) -> None:
    check_fields(sampling(name, value))


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, (_, bad) in RANGES.items() for v in (*bad, math.nan, math.inf, -math.inf)]
)
def test_beyond_the_bounds_of_sampling(name: str, value: float) -> None:
    assert violations(refusal(sampling(name, value))) == [f"sampling.{name}"]


def _extend(field: Callable[[pb.GenerateRequest], Any], values: list[Any]) -> Change:
    return lambda made: field(made).extend(values)


def _set(path: str, value: Any) -> Change:
    def change(made: pb.GenerateRequest) -> None:
        target: Any = made
        *parents, last = path.split(".")
        for parent in parents:
            target = getattr(target, parent)
        if isinstance(value, Duration):
            getattr(target, last).CopyFrom(value)
        else:
            setattr(target, last, value)

    return change


def _bias(values: dict[int, float]) -> Change:
    return lambda made: made.sampling.logit_bias.update(values)


INVALID: list[tuple[Change, list[str]]] = [
    (_set("text", ""), ["text"]),
    (_set("text", "é" * (3 << 20)), ["text"]),
    (lambda made: made.ClearField("text"), ["input"]),
    (lambda made: made.token_ids.SetInParent(), ["token_ids.ids"]),
    (_extend(lambda made: made.token_ids.ids, [1, 258, 2, 2**32 - 1]), ["token_ids.ids[1]", "token_ids.ids[3]"]),
    (lambda made: made.chat.SetInParent(), ["chat.messages"]),
    (lambda made: made.chat.messages.add(content="x"), ["chat.messages[0].role"]),
    (lambda made: made.chat.messages.add(role="r" * 65), ["chat.messages[0].role"]),
    (lambda made: made.chat.messages.add(role="user", content="x" * (5 << 20)), ["chat"]),
    (lambda made: made.chat.messages.extend([pb.ChatMessage(role="user")] * 4097), ["chat.messages"]),
    (lambda made: made.chat.MergeFrom(_chat("{")), ["chat.template_variables_json"]),
    (lambda made: made.chat.MergeFrom(_chat("[1]")), ["chat.template_variables_json"]),
    (lambda made: made.chat.MergeFrom(_chat('{"a": NaN}')), ["chat.template_variables_json"]),
    (lambda made: made.chat.MergeFrom(_chat('{"messages": []}')), ["chat.template_variables_json"]),
    (lambda made: made.chat.MergeFrom(_chat("[" * 100_000)), ["chat.template_variables_json"]),
    (lambda made: made.chat.MergeFrom(_chat('{"a": ' + "9" * 5000 + "}")), ["chat.template_variables_json"]),
    (_set("request_id", "a b"), ["request_id"]),
    (_set("request_id", "a\n"), ["request_id"]),
    (_set("request_id", "é"), ["request_id"]),
    (_set("request_id", "a" * 129), ["request_id"]),
    (_set("n", 0), ["n"]),
    (_set("timeout", Duration()), ["timeout"]),
    (_set("timeout", Duration(seconds=-1)), ["timeout"]),
    (_set("timeout", Duration(seconds=1, nanos=-1)), ["timeout"]),
    (_set("timeout", Duration(seconds=2**60)), ["timeout"]),
    (_set("timeout", Duration(nanos=2 * 10**9)), ["timeout"]),
    (_set("stop.max_tokens", 0), ["stop.max_tokens"]),
    (lambda made: made.stop.MergeFrom(pb.StopConditions(max_tokens=3, min_tokens=4)), ["stop.min_tokens"]),
    (_extend(lambda made: made.stop.strings, ["ok", "", "é" * 513]), ["stop.strings[1]", "stop.strings[2]"]),
    (_extend(lambda made: made.stop.strings, ["s"] * 17), ["stop.strings"]),
    (_extend(lambda made: made.stop.token_ids, [0, 258]), ["stop.token_ids[1]"]),
    (_extend(lambda made: made.stop.token_ids, [1] * 65), ["stop.token_ids"]),
    (_extend(lambda made: made.sampling.banned_token_ids, [258, 0]), ["sampling.banned_token_ids[0]"]),
    (_extend(lambda made: made.sampling.banned_token_ids, [1] * 1025), ["sampling.banned_token_ids"]),
    (_extend(lambda made: made.sampling.banned_token_ids, list(range(258))), ["sampling.banned_token_ids"]),
    (_bias({1: math.nan, 2: 100.5, 3: -math.inf, 4: 100}), [f"sampling.logit_bias[{i}]" for i in (1, 2, 3)]),
    (_bias({258: 1.0}), ["sampling.logit_bias[258]"]),
    (_bias(dict.fromkeys(range(1025), 0.0)), ["sampling.logit_bias"]),
]


def _chat(variables: str) -> pb.ChatInput:
    return pb.ChatInput(messages=[pb.ChatMessage(role="user")], template_variables_json=variables)


@pytest.mark.parametrize(("change", "fields"), INVALID)
def test_what_is_wrong_is_named(change: Change, fields: list[str], facts: ModelFacts) -> None:
    made = request()
    change(made)
    found = violations(refusal(made, facts))
    assert found[: len(fields)] == fields


def test_bans_and_masks_together_leave_something(facts: ModelFacts) -> None:
    made = request()
    made.sampling.banned_token_ids.extend(range(257))
    check_fields(made, Limits(), facts)
    # Below min_tokens the last one left, the end of text, cannot be drawn.
    made.stop.min_tokens = 1
    assert violations(refusal(made, facts)) == ["sampling.banned_token_ids"]
    made.stop.ignore_end_of_text = True
    check_fields(made, Limits(), facts)


def test_all_violations_come_at_once(facts: ModelFacts) -> None:
    made = request(text="", request_id="!", n=0, tenant="x")
    made.sampling.temperature = math.nan
    made.stop.strings.append("")
    made.stop.token_ids.append(999)
    error = refusal(made, facts)
    assert violations(error) == [
        "request_id",
        "text",
        "sampling.temperature",
        "stop.strings[0]",
        "n",
        "stop.token_ids[0]",
    ]


def test_a_long_wrong_prompt_is_counted(facts: ModelFacts) -> None:
    made = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9999] * 100_000))
    error = refusal(made, facts)
    assert len(violations(error)) == 16
    assert "and 100 more" in error.message


UNSUPPORTED: list[tuple[Change, str]] = [
    (_set("n", 2), "n"),
    (_set("n", 2**32 - 1), "n"),
    (_set("priority", 1), "priority"),
    (_set("priority", -1), "priority"),
    (_set("tenant", "t"), "tenant"),
    (_set("cache_salt", "s"), "cache_salt"),
    (_set("session_key", "k"), "session_key"),
    (_set("adapter", "a"), "adapter"),
    (lambda made: made.structured_output.SetInParent(), "structured_output"),
    (_set("structured_output.regex", "a"), "structured_output"),
    (lambda made: made.resume.SetInParent(), "resume"),
    (lambda made: made.output.logprobs.SetInParent(), "output.logprobs"),
]


@pytest.mark.parametrize(("change", "field"), UNSUPPORTED)
def test_what_does_not_work_so_far_is_named(change: Change, field: str) -> None:
    made = request()
    change(made)
    error = refusal(made)
    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert field in error.message


def test_defaults_that_are_spelled_out_are_fine() -> None:
    made = request(n=1, priority=0, tenant="", request_id="A-Z.a_z:09", truncate_prompt=0, add_special_tokens=True)
    made.sampling.seed = 2**64 - 1
    made.sampling.top_k = 2**32 - 1
    made.timeout.FromMilliseconds(1)
    made.stop.strings.extend(["s"] * 16)
    made.text = "\0"
    check_fields(made)


def test_limits_are_settings() -> None:
    made = request(text="12345")
    assert violations(refusal(made, limits=Limits(max_prompt_bytes=4))) == ["text"]
    check_fields(made, Limits(max_prompt_bytes=5))
    made.token_ids.ids.extend([1, 2, 3])
    assert violations(refusal(made, limits=Limits(max_prompt_tokens=2))) == ["token_ids.ids"]


def test_request_ids() -> None:
    assert valid_request_id("a" * 128)
    assert not any(map(valid_request_id, ("", "a" * 129, "a/b", "a\n", "ä")))
