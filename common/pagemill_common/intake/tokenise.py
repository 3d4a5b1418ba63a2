"""Tokenize and Detokenize: checks and answers, the same on both tiers."""

from __future__ import annotations

from pagemill.v1 import generation_pb2
from pagemill_common import errors
from pagemill_common.intake.chat import check_chat
from pagemill_common.intake.facts import Limits, ModelFacts
from pagemill_common.intake.pieces import extend, largest, pieces
from pagemill_common.intake.prepare import encode_rendered, render
from pagemill_common.intake.violations import Violations
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer

__all__ = ["detokenize", "tokenize"]


def tokenize(
    request: generation_pb2.TokenizeRequest, tokenizer: ModelTokenizer, facts: ModelFacts, limits: Limits | None = None
) -> generation_pb2.TokenizeResponse:
    """Ids and pieces of a text or chat. Takes CPU time: call it in a thread. Raises INVALID_ARGUMENT."""
    limits = limits or Limits()
    _check_input(request, limits)
    if request.WhichOneof("input") == "chat":
        path, rendered = "chat", render(request.chat, tokenizer)
        _check_size(path, rendered, limits)
        ids = encode_rendered(rendered, tokenizer)
    else:
        path, rendered = "text", request.text
        add = request.add_special_tokens if request.HasField("add_special_tokens") else True
        ids = tokenizer.encode(rendered, add_special_tokens=add)
    reply = generation_pb2.TokenizeResponse(model=facts.name, rendered=rendered)
    for piece in pieces(ids):
        reply.token_ids.extend(piece)
        reply.pieces.extend([tokenizer.piece(token_id) for token_id in piece])
    _check_reply(path, reply.ByteSize(), limits)
    return reply


def detokenize(
    request: generation_pb2.DetokenizeRequest,
    tokenizer: ModelTokenizer,
    facts: ModelFacts,
    limits: Limits | None = None,
) -> generation_pb2.DetokenizeResponse:
    """The text of token ids. Takes CPU time: call it in a thread. Raises INVALID_ARGUMENT."""
    limits, found = limits or Limits(), Violations()
    found.count("token_ids", len(request.token_ids), limits.max_prompt_tokens)
    found.raise_any()
    ids: list[int] = []
    extend(ids, request.token_ids)
    if largest(ids) >= facts.vocabulary_size:
        found.tokens("token_ids", ids, facts.vocabulary_size)
    found.raise_any()
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    shown = (token_id for token_id in ids if not (skip and tokenizer.is_special(token_id)))
    _check_reply("token_ids", sum(len(tokenizer.token_bytes(token_id)) for token_id in shown), limits)
    reply = generation_pb2.DetokenizeResponse(model=facts.name, text=tokenizer.decode(ids, skip_special_tokens=skip))
    _check_reply("token_ids", reply.ByteSize(), limits)  # bytes that are no character show as three
    return reply


def _check_input(request: generation_pb2.TokenizeRequest, limits: Limits) -> None:
    found = Violations()
    match request.WhichOneof("input"):
        case "chat":
            found.count("chat.messages", len(request.chat.messages), limits.max_messages)
            found.raise_any()
            check_chat(request.chat, limits, found)
        case "text":
            # An empty text has no tokens, and that is a right answer here.
            _check_size("text", request.text, limits)
        case _:
            found.add("input", "one of text and chat is required")
    found.raise_any()


def _check_size(path: str, text: str, limits: Limits) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.max_tokenize_bytes:
        where = "renders to" if path == "chat" else "holds"
        text = f"{where} {size} bytes; at most {limits.max_tokenize_bytes} are allowed in one Tokenize"
        raise errors.bad_fields([(path, text)])


def _check_reply(path: str, size: int, limits: Limits) -> None:
    if size > limits.max_reply_bytes:
        text = f"would take a reply of {size} bytes; at most {limits.max_reply_bytes} are allowed; send it in parts"
        raise errors.bad_fields([(path, text)])
