"""From keywords to the request of the wire."""

from __future__ import annotations

import json

import pytest

from pagemill.errors import InvalidRequest
from pagemill.fields import FIELDS, option_of
from pagemill.options import GenerateOptions
from pagemill.request import build_detokenize, build_request, build_tokenize, name_request
from pagemill.v1 import generation_pb2 as pb

SAMPLES: dict[str, object] = {
    "model": "tiny",
    "request_id": "mine",
    "timeout": 1.5,
    "max_tokens": 7,
    "min_tokens": 0,
    "stop": ["a", "b"],
    "stop_token_ids": [3, 4],
    "include_stop": False,
    "ignore_end_of_text": True,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.5,
    "min_p": 0.25,
    "repetition_penalty": 1.5,
    "frequency_penalty": -2.0,
    "presence_penalty": 2.0,
    "logit_bias": {5: -100.0},
    "banned_token_ids": [9],
    "seed": 2**64 - 1,
    "skip_special_tokens": False,
    "return_token_ids": False,
    "add_special_tokens": False,
    "truncate_prompt": 0,
    "add_generation_prompt": False,
    "template_variables": {"tools": [], "date": "today"},
    "allow_approximate_resume": False,
    "n": 1,
    "priority": -3,
    "tenant": "team",
    "cache_salt": "salt",
    "session_key": "session",
    "adapter": "lora",
    "logprobs": 0,
    "prompt_logprobs": False,
    "processed_logprobs": False,
    "json_schema": {"type": "object"},
    "regex": "a+",
    "grammar": "start: A",
}


def read(request: pb.GenerateRequest, path: str) -> tuple[bool, object]:
    """Whether a field is set, and what it holds."""
    *parents, name = path.split(".")
    message: object = request
    for parent in parents:
        message = getattr(message, parent)
    value = getattr(message, name)
    try:
        return message.HasField(name), value  # type: ignore[attr-defined]
    except ValueError:
        return bool(value), value


def plain(value: object) -> object:
    return dict(value) if isinstance(value, dict) or hasattr(value, "items") else list(value)  # type: ignore[call-overload]


def test_there_is_a_sample_for_every_option() -> None:
    assert SAMPLES.keys() == GenerateOptions.__annotations__.keys() == FIELDS.keys() | {"timeout"}


@pytest.mark.parametrize("option", sorted(SAMPLES))
def test_each_option_sets_its_field_and_no_other(option: str) -> None:
    sample = SAMPLES[option]
    chat = option in ("add_generation_prompt", "template_variables")
    bare = build_request(None if chat else "hi", [{"role": "user", "content": "hi"}] if chat else None, None, {})
    made = build_request(
        None if chat else "hi",
        [{"role": "user", "content": "hi"}] if chat else None,
        None,
        {option: sample},  # type: ignore[misc]
    )
    if option == "timeout":
        assert (made.timeout.seconds, made.timeout.nanos) == (1, 500_000_000)
        made.ClearField("timeout")
    else:
        path = FIELDS[option]
        is_set, value = read(made, path)
        assert is_set, f"{path} is set even where the value is the type's own zero"
        if isinstance(sample, dict) and isinstance(value, str):
            assert json.loads(value) == sample
        elif isinstance(sample, list | dict):
            assert plain(value) == sample
        else:
            assert value == sample
        *parents, name = path.split(".")
        message: object = made
        for parent in parents:
            message = getattr(message, parent)
        message.ClearField(name)  # type: ignore[attr-defined]
    # Only empty containers are left beside what every request has.
    assert pb.GenerateRequest.FromString(made.SerializeToString()).text == bare.text
    left = {f.name for f, _ in made.ListFields()} - {f.name for f, _ in bare.ListFields()}
    assert left <= {"sampling", "stop", "output", "structured_output"}


def test_none_leaves_everything_to_the_server() -> None:
    options: GenerateOptions = dict.fromkeys(SAMPLES)  # type: ignore[assignment]
    assert build_request("hi", None, None, options) == pb.GenerateRequest(text="hi")


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"max_token\b"):
        build_request("hi", None, None, {"max_token": 3})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ((None, None, None), "input"),
        (("hi", None, [1]), "input"),
        ((None, [], None), "chat.messages"),
        ((None, "hi", None), "chat.messages"),
        ((None, [{"content": "hi"}], None), "chat.messages[0].role"),
        ((None, [{"role": "user", "content": "hi"}, {"role": "user", "text": "x"}], None), "chat.messages[1].text"),
        ((None, [{"role": "user", "content": 3}], None), "chat.messages[0].content"),
        ((None, ["hi"], None), "chat.messages[0]"),
        ((None, None, []), "token_ids.ids"),
        ((None, None, [1, -1]), "token_ids.ids"),
        ((5, None, None), "text"),
    ],
)
def test_an_input_that_cannot_be_sent_is_named(inputs: tuple[object, ...], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request(*inputs, {})  # type: ignore[arg-type]
    assert [v.field for v in caught.value.violations] == [field]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("top_k", "many"),
        ("seed", 2**64),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: "x"}),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("include_stop", "yes"),
        ("model", 3),
        ("json_schema", {"a": object()}),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", -1),
        ("timeout", "soon"),
        ("timeout", True),
        ("template_variables", {"a": 1}),
        ("model", "\ud800"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named(option: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request("hi", None, None, {option: value})  # type: ignore[misc]
    assert [v.field for v in caught.value.violations] == [FIELDS.get(option, "timeout")]


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request(None, None, None, {"top_k": -1, "seed": -1})
    assert [v.field for v in caught.value.violations] == ["input", "sampling.top_k", "sampling.seed"]


def test_a_request_that_cannot_be_sent_is_held_against_the_ranges_too() -> None:
    with pytest.raises(InvalidRequest) as caught:
        build_request("hi", None, None, {"top_k": -1, "temperature": 900, "top_p": 2, "min_p": 0.5, "max_tokens": 0})
    assert {v.field: v.description for v in caught.value.violations} == {
        "sampling.top_k": "must be a whole number from 0 to 4294967295, not -1",
        "sampling.temperature": "must be in [0, 100], not 900",
        "sampling.top_p": "must be in (0, 1], not 2",
        "stop.max_tokens": "must be at least 1",
    }
    assert caught.value.reason == "INVALID_FIELD"
    assert "top_k (sampling.top_k): must be" in str(caught.value)


def test_ranges_alone_are_left_to_the_server() -> None:
    assert build_request("hi", None, None, {"top_p": 2.0}).sampling.top_p == 2.0


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("sampling.top_k", "top_k"),
        ("stop.strings[3]", "stop"),
        ("sampling.logit_bias[5]", "logit_bias"),
        ("timeout", "timeout"),
        ("chat.messages[0].role", None),
        ("text", None),
    ],
)
def test_the_option_behind_a_field(path: str, option: str | None) -> None:
    assert option_of(path) == option


def test_an_id_is_drawn_where_the_request_has_none() -> None:
    sizes: list[int] = []

    def random_bytes(size: int) -> bytes:
        sizes.append(size)
        return b"\x11" * size

    assert name_request(pb.GenerateRequest(), random_bytes).request_id == "11111111111141119111111111111111"
    assert sizes == [16]
    assert name_request(pb.GenerateRequest(request_id="mine"), random_bytes).request_id == "mine"
    assert sizes == [16]


def test_detokenize_takes_token_ids_that_fit() -> None:
    assert build_detokenize([1, 2], None, False) == pb.DetokenizeRequest(token_ids=[1, 2], skip_special_tokens=False)
    with pytest.raises(InvalidRequest) as caught:
        build_detokenize([-1], None, None)
    assert [v.field for v in caught.value.violations] == ["token_ids"]


def test_messages_may_be_messages_of_the_wire() -> None:
    turn = pb.ChatMessage(role="user", content="hi", name="ann")
    request = build_request(None, [turn, {"role": "assistant", "content": ""}], None, {"add_generation_prompt": False})
    assert request.chat.messages[0] == turn
    assert request.chat.messages[1].role == "assistant"
    assert request.chat.HasField("add_generation_prompt")


def test_one_stop_string_needs_no_list() -> None:
    assert list(build_request("hi", None, None, {"stop": "END"}).stop.strings) == ["END"]


def test_tokenize_takes_a_text_or_a_chat() -> None:
    assert build_tokenize("hi", None, "tiny", False).text == "hi"
    assert build_tokenize(None, [{"role": "user", "content": "x"}], None, None).chat.messages[0].content == "x"
    with pytest.raises(InvalidRequest):
        build_tokenize(None, None, None, None)
