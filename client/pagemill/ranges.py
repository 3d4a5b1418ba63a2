"""The ranges of the contract's numbers, in one place for callers and servers. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers in [low, high], or in (low, high] with `above`."""

    low: float
    high: float
    above: bool = False

    def violation(self, value: float) -> str | None:
        """What is wrong with a value; None where it is in the range."""
        if not math.isfinite(value):
            return f"must be a finite number, not {value}"
        if value < self.low or value > self.high or (self.above and value == self.low):
            return f"must be in {self}, not {value:g}"
        return None

    def __str__(self) -> str:
        return f"{'(' if self.above else '['}{self.low:g}, {self.high:g}]"


SAMPLING = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0, above=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, 100.0, above=True),
    "frequency_penalty": Range(-100.0, 100.0),
    "presence_penalty": Range(-100.0, 100.0),
}
"""By the field's name in SamplingParams."""

LOGIT_BIAS = Range(-100.0, 100.0)
"""Each entry of `logit_bias`."""
