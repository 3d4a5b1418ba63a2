"""From keyword arguments to the request of the wire. Pure.

Whatever cannot be put on the wire at all (a text where a number belongs, a negative count) raises `InvalidRequest`
here, in the same form in which a server reports a value that is out of range; all other checks are the server's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import Message

from pagemill.errors import InvalidRequest, Violation
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.v1 import generation_pb2 as pb

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
