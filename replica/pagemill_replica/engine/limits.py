"""What bounds a step and a request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pagemill_replica.engine.messages import Submit


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Settings of the scheduler."""

    max_context_tokens: int
    """Most tokens of prompt and output together."""
    token_budget: int = 2048
    """Most tokens computed in one step: what bounds the gap between two tokens of a running stream."""
    max_running: int = 256
    """Most sequences in one step."""
    watermark: float = 0.01
    """Share of the blocks left idle when a request is admitted beside others, unless they cannot come to need it."""

    vocabulary_size: int | None = None
    """Token ids are below this; None: not checked."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the field at fault."""
        if self.max_context_tokens < 2:
            raise ValueError(f"max_context_tokens must be at least 2, not {self.max_context_tokens}")
        if self.max_running < 1:
            raise ValueError(f"max_running must be at least 1, not {self.max_running}")
        if self.token_budget < self.max_running:
            raise ValueError(
                f"token_budget {self.token_budget} is below max_running {self.max_running}: "
                "every running sequence gets at least one token in each step"
            )
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1), not {self.watermark}")


def unknown_ids(request: Submit, vocabulary_size: int | None) -> str:
    """Which field names a token id that the model does not have; empty where none does.

    The front has said so to its caller long before. Asked again here, because one such id would fail the step of
    everyone who shares it.
    """
    if vocabulary_size is None:
        return ""
    fields: dict[str, Collection[int]] = {
        "prompt_ids": request.prompt_ids,
        "output_ids": request.output_ids,
        "logit_bias": request.sampling.logit_bias,
        "banned_token_ids": request.sampling.banned_token_ids,
        "stop_token_ids": request.stop.stop_token_ids,
        "end_of_text_ids": request.stop.end_of_text_ids,
    }
    for name, ids in fields.items():
        if ids and not (min(ids) >= 0 and max(ids) < vocabulary_size):
            return f"{name} has a token id outside of [0, {vocabulary_size})"
    return ""
