"""Checks of a continuation that a router sends with a request."""

from __future__ import annotations

from pagemill.v1 import generation_pb2
from pagemill_common.intake.facts import ModelFacts
from pagemill_common.intake.violations import Violations

__all__ = ["check_continuation"]


def check_continuation(request: generation_pb2.GenerateRequest, facts: ModelFacts, found: Violations) -> None:
    """Token ids, indexes and lengths, so that a faulty router harms nobody's request but its own."""
    if not request.placement.HasField("continuation"):
        return
    path, size = "placement.continuation", facts.vocabulary_size
    continuation = request.placement.continuation
    if continuation.prompt_ids and max(continuation.prompt_ids) >= size:
        found.add(f"{path}.prompt_ids", f"holds ids outside the vocabulary of {size} tokens")
    indexes = [choice.index for choice in continuation.choices]
    choices = request.n if request.HasField("n") else 1
    if len(set(indexes)) != len(indexes) or any(index >= choices for index in indexes):
        found.add(f"{path}.choices", f"indexes must be different and below {choices}")
    for position, choice in enumerate(continuation.choices):
        place = f"{path}.choices[{position}]"
        if choice.token_ids and max(choice.token_ids) >= size:
            found.add(f"{place}.token_ids", f"holds ids outside the vocabulary of {size} tokens")
        if request.stop.HasField("max_tokens") and len(choice.token_ids) > request.stop.max_tokens:
            found.add(f"{place}.token_ids", f"holds more than max_tokens ({request.stop.max_tokens}) ids")
