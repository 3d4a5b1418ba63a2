"""Whether a prompt can fit: by its size before it is encoded, by its tokens after."""

from __future__ import annotations

from pagemill.v1 import generation_pb2
from pagemill_common import errors
from pagemill_common.intake.facts import ModelFacts
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer

__all__ = ["CUT_BYTES", "check_ids", "check_size", "fit", "truncate"]

CUT_BYTES = 1 << 20
"""A text of so many bytes may always be encoded to keep its end. Which tokens the end has can depend on the beginning,
so that nothing less than the whole text will do.
"""


def check_size(
    path: str, text: str, request: generation_pb2.GenerateRequest, tokenizer: ModelTokenizer, facts: ModelFacts
) -> None:
    """Refuses a text that would take long to encode and cannot fit. Raises OUT_OF_RANGE, naming the bound.

    A text that may be cut can be longer, up to `CUT_BYTES`.
    """
    tokens = tokenizer.fewest_tokens(text)
    if tokens < facts.max_total_tokens:
        return
    if not request.HasField("truncate_prompt"):
        raise errors.out_of_range(path, f"the prompt has {tokens} tokens or more and leaves no room; {_bound(facts)}")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > CUT_BYTES:
        description = f"holds {size} bytes; to keep the end of a prompt that does not fit, at most {CUT_BYTES} are read"
        raise errors.out_of_range(path, description)


def check_ids(request: generation_pb2.GenerateRequest, facts: ModelFacts) -> None:
    """Refuses a prompt of ids that cannot fit, before they are looked at. Raises OUT_OF_RANGE."""
    if not request.HasField("truncate_prompt"):
        _left("token_ids", len(request.token_ids.ids), facts)


def truncate(request: generation_pb2.GenerateRequest, ids: list[int], facts: ModelFacts) -> list[int]:
    """The end of the prompt that the request wants kept. Raises OUT_OF_RANGE where max_tokens leaves no room for it."""
    if not request.HasField("truncate_prompt"):
        return ids
    keep = request.truncate_prompt
    if keep == 0:
        output = request.stop.max_tokens if request.stop.HasField("max_tokens") else 1
        keep = facts.max_total_tokens - output
        if keep < 1:
            raise errors.out_of_range("stop.max_tokens", f"{output} leaves no room for a prompt; {_bound(facts)}")
    return ids[-keep:]


def fit(path: str, prompt_tokens: int, stop: generation_pb2.StopConditions, facts: ModelFacts) -> int:
    """max_tokens, resolved. Raises OUT_OF_RANGE, which names the field at fault and the bound that it passes."""
    left = _left(path, prompt_tokens, facts)
    if stop.HasField("max_tokens"):
        if stop.max_tokens > left:
            text = f"{prompt_tokens} prompt tokens and {stop.max_tokens} more are too many; {_bound(facts)}"
            raise errors.out_of_range("stop.max_tokens", text)
        return stop.max_tokens
    if stop.min_tokens > left:
        text = f"{prompt_tokens} prompt tokens and {stop.min_tokens} more are too many; {_bound(facts)}"
        raise errors.out_of_range("stop.min_tokens", text)
    return left


def _left(path: str, prompt_tokens: int, facts: ModelFacts) -> int:
    left = facts.max_total_tokens - prompt_tokens
    if left < 1:
        raise errors.out_of_range(path, f"the prompt has {prompt_tokens} tokens and leaves no room; {_bound(facts)}")
    return left


def _bound(facts: ModelFacts) -> str:
    if facts.max_request_tokens < facts.max_context_tokens:
        return f"the KV cache holds {facts.max_request_tokens} tokens of one request (max_request_tokens)"
    return f"the model's context is {facts.max_context_tokens} tokens (max_context_tokens)"
