"""How a model's rotation is slowed down so that its context reaches further than it was first trained for."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ORIGINAL_CONTEXT = 1 << 24
"""Positions; as many as any model may have."""
MIN_FREQUENCY_FACTOR = 1e-3
"""Scalings slow pairs down; a pair sped up a thousandfold is damage, and far below this angles overflow float32."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by one factor (position interpolation, https://arxiv.org/abs/2306.15595)."""

    factor: float

    def problem(self, pairs: int) -> str | None:
        """Why no head of `pairs` rotated pairs can be turned so, or None."""
        return _factor_problem(self.factor)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long waves divided by a factor, short ones left alone, those between blended (Llama 3.1).

    A wave is long past original_context / low_freq_factor positions, short below original_context / high_freq_factor.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int
    """Positions the model was first trained for."""

    def problem(self, pairs: int) -> str | None:
        """Why no head of `pairs` rotated pairs can be turned so, or None."""
        low, high = self.low_freq_factor, self.high_freq_factor
        if not 0 < low < high < float("inf"):
            return (
                f"rope scaling has a low_freq_factor of {low} and a high_freq_factor of {high};"
                " both must be above 0, and the low one below the high one"
            )
        if not 0 < self.original_context <= MAX_ORIGINAL_CONTEXT:
            return (
                f"rope scaling has an original context of {self.original_context};"
                f" it must be between 1 and {MAX_ORIGINAL_CONTEXT}"
            )
        return _factor_problem(self.factor)


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Each pair's frequency divided by a factor of its own: a scaling worked out by whoever wrote the file."""

    factors: tuple[float, ...]
    """One a pair, the fastest first; they hold float32 values."""

    def problem(self, pairs: int) -> str | None:
        """Why no head of `pairs` rotated pairs can be turned so, or None."""
        if len(self.factors) != pairs:
            return f"{len(self.factors)} frequency factors cannot turn the {pairs} pairs of a head"
        wrong = [factor for factor in self.factors if not MIN_FREQUENCY_FACTOR <= factor < float("inf")]
        if wrong:
            return f"a frequency factor is {wrong[0]}; it must be finite and at least {MIN_FREQUENCY_FACTOR}"
        return None


RopeScaling = LinearScaling | Llama3Scaling | FrequencyFactors


def _factor_problem(factor: float) -> str | None:
    if 1 <= factor < float("inf"):
        return None
    return f"rope scaling has a factor of {factor}; it must be finite and at least 1"
