"""Checks of every field of a GenerateRequest that need no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sized

from pagemill import ranges
from pagemill.v1 import generation_pb2
from pagemill_common.intake.chat import check_chat
from pagemill_common.intake.facts import Limits, ModelFacts
from pagemill_common.intake.pieces import largest
from pagemill_common.intake.presence import is_set
from pagemill_common.intake.violations import Violations

__all__ = ["check_fields", "collect", "collect_vocabulary", "crowded", "seconds_of", "valid_request_id"]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_DURATION_SECONDS = 315_576_000_000
_NANOS = 1_000_000_000


def check_fields(
    request: generation_pb2.GenerateRequest, limits: Limits | None = None, facts: ModelFacts | None = None
) -> None:
    """Checks all fields, cheaply enough for an event loop's turn. With `facts`, token ids against the vocabulary too.

    A field with too many entries is counted and not read. Raises StatusError: INVALID_ARGUMENT with every violation,
    else UNIMPLEMENTED with the field's name.
    """
    found = collect(request, limits or Limits())
    if facts is not None:
        collect_vocabulary(request, facts, found)
    found.raise_any()


def crowded(request: generation_pb2.GenerateRequest, limits: Limits) -> bool:
    """Whether a field has too many entries: `check_fields` refuses the request and need not be spared its size."""
    return any(len(entries) > most for _, entries, most in _counted(request, limits))


def valid_request_id(request_id: str) -> bool:
    """Whether a caller may use this id."""
    return _REQUEST_ID.fullmatch(request_id) is not None


def seconds_of(request: generation_pb2.GenerateRequest) -> float | None:
    """The request's timeout; None where it has none."""
    return request.timeout.seconds + request.timeout.nanos / _NANOS if request.HasField("timeout") else None


def collect(request: generation_pb2.GenerateRequest, limits: Limits) -> Violations:
    """Everything wrong with a request, as far as it shows without model and tokenizer."""
    found = Violations()
    if request.request_id and not valid_request_id(request.request_id):
        found.add("request_id", "must be at most 128 of A-Z a-z 0-9 . _ : -")
    for path, entries, most in _counted(request, limits):
        found.count(path, len(entries), most)
    _check_input(request, limits, found)
    _check_sampling(request.sampling, limits, found)
    _check_stop(request.stop, limits, found)
    _check_timeout(request, found)
    _check_unsupported(request, found)
    return found


def collect_vocabulary(request: generation_pb2.GenerateRequest, facts: ModelFacts, found: Violations) -> None:
    """Token ids outside the vocabulary, and bans that leave nothing to draw."""
    size = facts.vocabulary_size
    if any(path in _COUNTED for path, _ in found.found):
        return
    # The largest first: prompts are long, and nearly all are right.
    if largest(request.token_ids.ids) >= size:
        found.tokens("token_ids.ids", request.token_ids.ids, size)
    for token_id in sorted(request.sampling.logit_bias):
        found.token(f"sampling.logit_bias[{token_id}]", token_id, size)
    for index, token_id in enumerate(request.sampling.banned_token_ids):
        found.token(f"sampling.banned_token_ids[{index}]", token_id, size)
    for index, token_id in enumerate(request.stop.token_ids):
        found.token(f"stop.token_ids[{index}]", token_id, size)
    masked = set(request.sampling.banned_token_ids)
    if request.stop.min_tokens:
        masked.update(request.stop.token_ids)
        masked.update(() if request.stop.ignore_end_of_text else facts.end_of_text_ids)
    if request.sampling.banned_token_ids and sum(0 <= token_id < size for token_id in masked) >= size:
        found.add("sampling.banned_token_ids", "leaves no token that could be drawn")


_COUNTED = (
    "token_ids.ids",
    "chat.messages",
    "sampling.logit_bias",
    "sampling.banned_token_ids",
    "stop.strings",
    "stop.token_ids",
)


def _counted(request: generation_pb2.GenerateRequest, limits: Limits) -> Iterator[tuple[str, Sized, int]]:
    """Path, entries and bound of each field that a caller can fill with millions."""
    sampling, stop = request.sampling, request.stop
    fields: tuple[tuple[Sized, int], ...] = (
        (request.token_ids.ids, limits.max_prompt_tokens),
        (request.chat.messages, limits.max_messages),
        (sampling.logit_bias, limits.max_logit_bias),
        (sampling.banned_token_ids, limits.max_banned_tokens),
        (stop.strings, limits.max_stop_strings),
        (stop.token_ids, limits.max_stop_tokens),
    )
    for path, (entries, most) in zip(_COUNTED, fields, strict=True):
        yield path, entries, most


def _check_input(request: generation_pb2.GenerateRequest, limits: Limits, found: Violations) -> None:
    match request.WhichOneof("input"):
        case "text":
            _check_text(request.text, limits, found)
        case "chat":
            check_chat(request.chat, limits, found)
        case "token_ids":
            if not request.token_ids.ids:
                found.add("token_ids.ids", "must hold at least one token")
        case _:
            found.add("input", "one of text, chat and token_ids is required")


def _check_text(text: str, limits: Limits, found: Violations) -> None:
    """A prompt in plain text."""
    if not text:
        found.add("text", "must not be empty")
    size = len(text.encode())
    if size > limits.max_prompt_bytes:
        found.add("text", f"holds {size} bytes; at most {limits.max_prompt_bytes} are allowed")


def _check_sampling(sampling: generation_pb2.SamplingParams, limits: Limits, found: Violations) -> None:
    for name, allowed in ranges.SAMPLING.items():
        if is_set(sampling, name):
            found.number(f"sampling.{name}", getattr(sampling, name), allowed)
    if len(sampling.logit_bias) <= limits.max_logit_bias:
        for token_id in sorted(sampling.logit_bias):
            found.number(f"sampling.logit_bias[{token_id}]", sampling.logit_bias[token_id], ranges.LOGIT_BIAS)


def _check_stop(stop: generation_pb2.StopConditions, limits: Limits, found: Violations) -> None:
    if stop.HasField("max_tokens"):
        if stop.max_tokens < 1:
            found.add("stop.max_tokens", "must be at least 1")
        elif stop.min_tokens > stop.max_tokens:
            found.add("stop.min_tokens", f"must be at most max_tokens ({stop.max_tokens}), not {stop.min_tokens}")
    for index, string in enumerate(stop.strings[: limits.max_stop_strings]):
        size = len(string.encode())
        if not 1 <= size <= limits.max_stop_string_bytes:
            found.add(f"stop.strings[{index}]", f"must have 1 to {limits.max_stop_string_bytes} bytes, not {size}")


def _check_timeout(request: generation_pb2.GenerateRequest, found: Violations) -> None:
    if not request.HasField("timeout"):
        return
    seconds, nanos = request.timeout.seconds, request.timeout.nanos
    if abs(seconds) > _MAX_DURATION_SECONDS or abs(nanos) >= _NANOS or seconds * nanos < 0:
        found.add("timeout", "is not a valid duration")
    elif seconds + nanos <= 0:
        found.add("timeout", "must be above 0")


def _check_unsupported(request: generation_pb2.GenerateRequest, found: Violations) -> None:
    if request.HasField("n"):
        if request.n < 1:
            found.add("n", "must be at least 1")
        elif request.n > 1:
            found.not_supported("n")
    if request.priority:
        found.not_supported("priority")
    for name in ("tenant", "cache_salt", "session_key", "adapter"):
        if getattr(request, name):
            found.not_supported(name)
    for name in ("structured_output", "resume"):
        if is_set(request, name):
            found.not_supported(name)
    if request.output.HasField("logprobs"):
        found.not_supported("output.logprobs")
