"""What a request asks of the engine, every default already resolved."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; see SamplingParams in the wire contract for ranges."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned_token_ids: tuple[int, ...] = ()
    seed: int = 0
    """Unsigned, 64 bits."""
    choice_index: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """When a sequence ends by its tokens; stop strings are the front's matter."""

    max_tokens: int
    """Output tokens at most, those replayed from a continuation included."""
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    end_of_text_ids: tuple[int, ...] = ()
    """Empty where the request ignores end of text."""
