"""Checks of a continuation that a router sends with a request."""

from __future__ import annotations

from pagemill.v1 import generation_pb2
from pagemill_common.intake.facts import ModelFacts
from pagemill_common.intake.pieces import largest
from pagemill_common.intake.violations import Violations

__all__ = ["check_continuation"]


def check_continuation(request: generation_pb2.GenerateRequest, facts: ModelFacts, found: Violations) -> None:
    """Token ids, indexes and lengths, so that a faulty router harms nobody's request but its own."""
    if not request.placement.HasField("continuation"):
        return
    path, size = "placement.continuation", facts.vocabulary_size
    continuation = request.placement.continuation
    if largest(continuation.prompt_ids) >= size:
        found.add(f"{path}.prompt_ids", f"holds ids outside the vocabulary of {size} tokens")
    choices = request.n if request.HasField("n") else 1
    if len(continuation.choices) > choices:
        found.add(f"{path}.choices", f"has {len(continuation.choices)} entries; at most {choices} are allowed")
        return
    indexes = [choice.index for choice in continuation.choices]
    if len(set(indexes)) != len(indexes) or any(index >= choices for index in indexes):
        found.add(f"{path}.choices", f"indexes must be different and below {choices}")
    for position, choice in enumerate(continuation.choices):
        place = f"{path}.choices[{position}]"
        if largest(choice.token_ids) >= size:
            found.add(f"{place}.token_ids", f"holds ids outside the vocabulary of {size} tokens")
        if request.stop.HasField("max_tokens") and len(choice.token_ids) > request.stop.max_tokens:
            found.add(f"{place}.token_ids", f"holds more than max_tokens ({request.stop.max_tokens}) ids")
