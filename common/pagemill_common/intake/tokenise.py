"""Tokenize and Detokenize: checks and answers, the same on both tiers."""

from __future__ import annotations

from pagemill.v1 import generation_pb2
from pagemill_common.intake.chat import check_chat
from pagemill_common.intake.checks import check_text
from pagemill_common.intake.facts import Limits, ModelFacts
from pagemill_common.intake.prepare import render_and_encode
from pagemill_common.intake.violations import Violations
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer

__all__ = ["detokenize", "tokenize"]


def tokenize(
    request: generation_pb2.TokenizeRequest, tokenizer: ModelTokenizer, facts: ModelFacts, limits: Limits | None = None
) -> generation_pb2.TokenizeResponse:
    """Ids and pieces of a text or chat. Takes CPU time: call it in a thread. Raises INVALID_ARGUMENT."""
    found = Violations()
    _check_input(request, limits or Limits(), found)
    found.raise_any()
    if request.WhichOneof("input") == "chat":
        rendered, ids = render_and_encode(request.chat, tokenizer)
    else:
        rendered = request.text
        add = request.add_special_tokens if request.HasField("add_special_tokens") else True
        ids = tokenizer.encode(rendered, add_special_tokens=add)
    return generation_pb2.TokenizeResponse(
        model=facts.name, token_ids=ids, pieces=[tokenizer.piece(token_id) for token_id in ids], rendered=rendered
    )


def detokenize(
    request: generation_pb2.DetokenizeRequest,
    tokenizer: ModelTokenizer,
    facts: ModelFacts,
    limits: Limits | None = None,
) -> generation_pb2.DetokenizeResponse:
    """The text of token ids. Raises INVALID_ARGUMENT."""
    found = Violations()
    ids = list(request.token_ids)
    found.count("token_ids", len(ids), (limits or Limits()).max_prompt_tokens)
    if ids and max(ids) >= facts.vocabulary_size:
        found.tokens("token_ids", ids, facts.vocabulary_size)
    found.raise_any()
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    return generation_pb2.DetokenizeResponse(model=facts.name, text=text)


def _check_input(request: generation_pb2.TokenizeRequest, limits: Limits, found: Violations) -> None:
    match request.WhichOneof("input"):
        case "chat":
            check_chat(request.chat, limits, found)
        case "text":
            # An empty text has no tokens, and that is a right answer here.
            check_text(request.text or " ", limits, found)
        case _:
            found.add("input", "one of text and chat is required")
