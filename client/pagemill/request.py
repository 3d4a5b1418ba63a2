"""From keyword arguments to the request of the wire. Pure.

Whatever cannot be put on the wire at all (a text where a number belongs, a negative count) raises `InvalidRequest`
here, in the same form in which a server reports a value that is out of range; all other checks are the server's. A
request that cannot be sent is held against the contract's ranges too, so that its caller hears of everything at once.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence

from pagemill.errors import Violation
from pagemill.fields import FIELDS, Writer, invalid, shown
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.ranges import SAMPLING
from pagemill.v1 import generation_pb2 as pb


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
    unknown = set(options) - FIELDS.keys() - {"timeout"}
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}; see pagemill.GenerateOptions")
    request = pb.GenerateRequest()
    writer = Writer(request)
    _input(writer, prompt, messages, token_ids)
    for option, value in options.items():
        if option == "timeout":
            _timeout(writer, value)
        elif value is not None:
            _option(writer, option, value, is_chat=messages is not None)
    if writer.violations:
        _ranges(writer, request)
    writer.check()
    return request


def name_request(request: pb.GenerateRequest, random_bytes: Callable[[int], bytes]) -> pb.GenerateRequest:
    """The request with an id drawn where it has none: gRPC's own retries of the call then share one.

    `random_bytes` is like os.urandom.
    """
    if not request.request_id:
        request.request_id = uuid.UUID(bytes=random_bytes(16), version=4).hex
    return request


def build_tokenize(
    text: str | None, messages: Sequence[ChatTurn] | None, model: str | None, add_special_tokens: bool | None
) -> pb.TokenizeRequest:
    """The Tokenize request for a text or a chat. Raises InvalidRequest as `build_request` does."""
    request = pb.TokenizeRequest()
    writer = Writer(request)
    _input(writer, text, messages, None)
    if model is not None:
        writer.put("model", model)
    if add_special_tokens is not None:
        writer.put("add_special_tokens", add_special_tokens)
    writer.check()
    return request


def build_detokenize(
    token_ids: Sequence[int], model: str | None, skip_special_tokens: bool | None
) -> pb.DetokenizeRequest:
    """The Detokenize request for token ids. Raises InvalidRequest as `build_request` does."""
    request = pb.DetokenizeRequest()
    writer = Writer(request)
    writer.put("token_ids", token_ids)
    if model is not None:
        writer.put("model", model)
    if skip_special_tokens is not None:
        writer.put("skip_special_tokens", skip_special_tokens)
    writer.check()
    return request


def check_timeout(timeout: float | None) -> None:
    """Raises InvalidRequest where a timeout is not a positive, finite number of seconds."""
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise invalid([Violation("timeout", f"must be above 0 seconds, got {timeout}")])


def _input(
    writer: Writer, text: str | None, messages: Sequence[ChatTurn] | None, token_ids: Sequence[int] | None
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


def _turn(writer: Writer, index: int, turn: ChatTurn) -> pb.ChatMessage:
    if isinstance(turn, pb.ChatMessage):
        return turn
    path = f"chat.messages[{index}]"
    if not isinstance(turn, Mapping):
        writer.refuse(path, f"must be a mapping with role and content, got {shown(turn)}")
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
                writer.refuse(f"{path}.{key}", f"{shown(value)} does not fit: {error}")
    return message


def _option(writer: Writer, option: str, value: object, *, is_chat: bool) -> None:
    path = FIELDS[option]
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


def _timeout(writer: Writer, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        writer.refuse("timeout", f"must be a number of seconds, got {shown(value)}")
    elif not (math.isfinite(value) and value > 0):
        writer.refuse("timeout", f"must be above 0 seconds, got {value}")
    else:
        nanoseconds = max(1, round(value * 1e9))
        writer.put("timeout.seconds", nanoseconds // 10**9)
        writer.put("timeout.nanos", nanoseconds % 10**9)


def _ranges(writer: Writer, request: pb.GenerateRequest) -> None:
    """Notes what the server would refuse of the numbers that do fit."""
    for name, allowed in SAMPLING.items():
        if request.sampling.HasField(name):  # type: ignore[arg-type]
            wrong = allowed.violation(getattr(request.sampling, name))
            if wrong is not None:
                writer.refuse(f"sampling.{name}", wrong)
    if request.stop.HasField("max_tokens") and request.stop.max_tokens < 1:
        writer.refuse("stop.max_tokens", "must be at least 1")
    if request.HasField("n") and request.n < 1:
        writer.refuse("n", "must be at least 1")
