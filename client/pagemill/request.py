"""From keyword arguments to the request of the wire. Pure.

Whatever cannot be put on the wire at all (a text where a number belongs, a negative count) raises `InvalidRequest`
here, in the same form in which a server reports a value that is out of range; all other checks are the server's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from google.protobuf.message import Message

from pagemill.errors import InvalidRequest, Violation
from pagemill.v1 import generation_pb2 as pb

ChatTurn = Mapping[str, str] | pb.ChatMessage
"""One message of a chat: a mapping with `role`, `content` and perhaps `name`, or the message itself."""


class GenerateOptions(TypedDict, total=False):
    """What can be asked of an answer. None, or left out, takes the server's default."""

    model: str | None
    """The served name or an alias. The only model where left out."""
    request_id: str | None
    """The caller's id, at most 128 of [A-Za-z0-9._:-]; drawn by the router where left out."""
    timeout: float | None
    """Seconds for the whole answer, above 0."""
    max_tokens: int | None
    """Most tokens to generate, at least 1; what is left of the context where left out."""
    min_tokens: int | None
    """No stop is honoured before this many tokens."""
    stop: str | Sequence[str] | None
    """Strings that end the text, at most 16."""
    stop_token_ids: Sequence[int] | None
    """Tokens that end the text, at most 64."""
    include_stop: bool | None
    """Leaves the stop string, or the text of the stop token, in the output."""
    ignore_end_of_text: bool | None
    """Goes on past the model's end-of-text tokens."""
    temperature: float | None
    """[0, 100]; 0 is greedy."""
    top_k: int | None
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float | None
    """Keep the smallest set of tokens whose probability reaches this, (0, 1]."""
    min_p: float | None
    """Drop tokens less likely than this share of the most likely one, [0, 1]."""
    repetition_penalty: float | None
    """(0, 100]; 1 is none."""
    frequency_penalty: float | None
    """[-100, 100]; 0 is none."""
    presence_penalty: float | None
    """[-100, 100]; 0 is none."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these token ids, each in [-100, 100]."""
    banned_token_ids: Sequence[int] | None
    """Token ids that are never drawn."""
    seed: int | None
    """Seed of the random bits, 64 bits unsigned; drawn by the router where left out."""
    skip_special_tokens: bool | None
    """Leaves special tokens out of the text; true where left out."""
    return_token_ids: bool | None
    """Carries token ids beside the text; true where left out."""
    add_special_tokens: bool | None
    """Adds the tokenizer's own special tokens to a plain-text prompt; true where left out."""
    truncate_prompt: int | None
    """Keeps only the last N prompt tokens; 0 keeps as many as leave room for max_tokens."""
    add_generation_prompt: bool | None
    """Adds the header that asks the assistant to speak, to a chat; true where left out."""
    template_variables: Mapping[str, object] | None
    """Further variables for the chat template."""
    allow_approximate_resume: bool | None
    """Lets the answer resume, after a failure, on a replica whose arithmetic differs."""
    n: int | None
    """How many independent answers."""
    priority: int | None
    """Larger is more urgent."""
    tenant: str | None
    """On whose behalf."""
    cache_salt: str | None
    """Keeps this request's cached prefix from others with another salt."""
    session_key: str | None
    """Requests with the same key prefer the same replica."""
    adapter: str | None
    """A fine-tuned adapter by name."""
    logprobs: int | None
    """Log-probabilities of the tokens, and of this many of the most likely ones, [0, 20]."""
    prompt_logprobs: bool | None
    """Also those of the prompt."""
    processed_logprobs: bool | None
    """After penalties, temperature and cuts rather than before."""
    json_schema: str | Mapping[str, object] | None
    """A JSON schema the output must follow."""
    regex: str | None
    """A regular expression the output must match."""
    grammar: str | None
    """A Lark grammar the output must follow."""


_FIELDS: dict[str, str] = {
    "model": "model",
    "request_id": "request_id",
    "max_tokens": "stop.max_tokens",
    "min_tokens": "stop.min_tokens",
    "stop": "stop.strings",
    "stop_token_ids": "stop.token_ids",
    "include_stop": "stop.include_stop",
    "ignore_end_of_text": "stop.ignore_end_of_text",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.repetition_penalty",
    "frequency_penalty": "sampling.frequency_penalty",
    "presence_penalty": "sampling.presence_penalty",
    "logit_bias": "sampling.logit_bias",
    "banned_token_ids": "sampling.banned_token_ids",
    "seed": "sampling.seed",
    "skip_special_tokens": "output.skip_special_tokens",
    "return_token_ids": "output.token_ids",
    "logprobs": "output.logprobs.top",
    "prompt_logprobs": "output.logprobs.prompt",
    "processed_logprobs": "output.logprobs.processed",
    "add_special_tokens": "add_special_tokens",
    "truncate_prompt": "truncate_prompt",
    "add_generation_prompt": "chat.add_generation_prompt",
    "template_variables": "chat.template_variables_json",
    "allow_approximate_resume": "allow_approximate_resume",
    "n": "n",
    "priority": "priority",
    "tenant": "tenant",
    "cache_salt": "cache_salt",
    "session_key": "session_key",
    "adapter": "adapter",
    "json_schema": "structured_output.json_schema",
    "regex": "structured_output.regex",
    "grammar": "structured_output.grammar",
}
"""Option to the path of the field it sets; `timeout` is apart because it is a message of its own."""


def build_request(
    prompt: str | None,
    messages: Sequence[ChatTurn] | None,
    token_ids: Sequence[int] | None,
    options: GenerateOptions,
) -> pb.GenerateRequest:
    """The request for one of `prompt`, `messages` and `token_ids`.

    Raises:
        InvalidRequest: with every value that does not fit its field, or where not exactly one input is given.
        TypeError: for an option that does not exist.

    """
    unknown = set(options) - _FIELDS.keys() - {"timeout"}
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; see pagemill.GenerateOptions")
    request = pb.GenerateRequest()
    writer = _Writer(request)
    _input(writer, prompt, messages, token_ids)
    for option, value in options.items():
        if option == "timeout":
            _timeout(writer, value)
        elif value is not None:
            _option(writer, option, value, is_chat=messages is not None)
    writer.check()
    return request


def build_tokenize(
    text: str | None, messages: Sequence[ChatTurn] | None, model: str | None, add_special_tokens: bool | None
) -> pb.TokenizeRequest:
    """The Tokenize request for a text or a chat. Raises InvalidRequest as `build_request` does."""
    request = pb.TokenizeRequest()
    writer = _Writer(request)
    _input(writer, text, messages, None)
    if model is not None:
        writer.put("model", model)
    if add_special_tokens is not None:
        writer.put("add_special_tokens", add_special_tokens)
    writer.check()
    return request


def check_timeout(timeout: float | None) -> None:
    """Raises InvalidRequest where a timeout is not a positive, finite number of seconds."""
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise _invalid([Violation("timeout", f"must be above 0 seconds, got {timeout}")])


class _Writer:
    """Sets fields by their path and collects what does not fit."""

    def __init__(self, root: Message) -> None:
        self._root = root
        self.violations: list[Violation] = []

    def put(self, path: str, value: object) -> None:
        """Sets a field: a scalar, a list or a map."""
        *parents, name = path.split(".")
        message = self._root
        for parent in parents:
            message = getattr(message, parent)
        try:
            if isinstance(value, Mapping):
                target = getattr(message, name)
                for key, item in value.items():
                    target[key] = item
            elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError) as error:
            self.refuse(path, f"{_shown(value)} does not fit: {error}")

    def refuse(self, path: str, why: str) -> None:
        """Notes that a value is wrong."""
        self.violations.append(Violation(path, why))

    def check(self) -> None:
        """Raises InvalidRequest where anything did not fit."""
        if self.violations:
            raise _invalid(self.violations)


def _input(
    writer: _Writer, text: str | None, messages: Sequence[ChatTurn] | None, token_ids: Sequence[int] | None
) -> None:
    given = [value for value in (text, messages, token_ids) if value is not None]
    if len(given) != 1:
        writer.refuse("input", f"give exactly one of a prompt, messages and token ids, got {len(given)}")
    elif text is not None:
        writer.put("text", text)
    elif messages is not None:
        if isinstance(messages, str | Mapping):
            writer.refuse("chat.messages", "must be a list of messages such as {'role': 'user', 'content': '...'}")
            return
        turns = [_turn(writer, i, m) for i, m in enumerate(messages)]
        writer.put("chat.messages", turns)
        if not turns:
            writer.refuse("chat.messages", "must hold at least one message")
    elif token_ids is not None:
        writer.put("token_ids.ids", token_ids)
        if not len(token_ids):
            writer.refuse("token_ids.ids", "must hold at least one token id")


def _turn(writer: _Writer, index: int, turn: ChatTurn) -> pb.ChatMessage:
    if isinstance(turn, pb.ChatMessage):
        return turn
    path = f"chat.messages[{index}]"
    if not isinstance(turn, Mapping):
        writer.refuse(path, f"must be a mapping with role and content, got {_shown(turn)}")
        return pb.ChatMessage()
    for key in turn.keys() - {"role", "content", "name"}:
        writer.refuse(f"{path}.{key}", "no such field; a message has role, content and perhaps name")
    if "role" not in turn:
        writer.refuse(f"{path}.role", "is missing")
    message = pb.ChatMessage()
    for key in ("role", "content", "name"):
        value = turn.get(key)
        if value is not None:
            try:
                setattr(message, key, value)
            except (TypeError, ValueError) as error:
                writer.refuse(f"{path}.{key}", f"{_shown(value)} does not fit: {error}")
    return message


def _option(writer: _Writer, option: str, value: object, *, is_chat: bool) -> None:
    path = _FIELDS[option]
    if path.startswith("chat.") and not is_chat:
        writer.refuse(path, f"{option} goes with messages only")
        return
    if option == "stop" and isinstance(value, str):
        value = [value]
    elif option in ("template_variables", "json_schema") and not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            writer.refuse(path, f"cannot be written as JSON: {error}")
            return
    writer.put(path, value)


def _timeout(writer: _Writer, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        writer.refuse("timeout", f"must be a number of seconds, got {_shown(value)}")
    elif not (math.isfinite(value) and value > 0):
        writer.refuse("timeout", f"must be above 0 seconds, got {value}")
    else:
        nanoseconds = max(1, round(value * 1e9))
        writer.put("timeout.seconds", nanoseconds // 10**9)
        writer.put("timeout.nanos", nanoseconds % 10**9)


def _invalid(violations: Sequence[Violation]) -> InvalidRequest:
    error = InvalidRequest("; ".join(f"{v.field}: {v.description}" for v in violations))
    error.violations = tuple(violations)
    return error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
